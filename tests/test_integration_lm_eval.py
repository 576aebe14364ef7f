"""The model of lm-eval: its numbers are those of each request alone, whatever is shared and read together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError, DataError, InputError, NotFiniteError

pytest.importorskip("lm_eval", reason='lm-eval is not installed; pip install "statewise[eval]"')

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from statewise.evaluate import evaluate_text
from statewise.integrations.lm_eval import StatewiseLM
from statewise.integrations.lm_eval_prefixes import prefix_tree, walk
from statewise.integrations.lm_eval_scores import score, write

Pairs = list[tuple[list[int], list[int]]]


def model_of(*layers: Any, **fields: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    return sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=layers, **fields).build().eval()


MAMBA = sw.MambaConfig(d_state=4)
MODELS = {
    "mamba": model_of(MAMBA, MAMBA),
    "hybrid": model_of(MAMBA, sw.AttentionConfig(n_heads=4), sw.S4DConfig(d_state=8)),
    "mamba2": model_of(sw.Mamba2Config(d_head=16, d_state=8)),
    "positions": model_of(sw.H3Config(d_state=4), sw.AttentionConfig(n_heads=4), max_positions=400),
}


def requests_of(seed: int = 0) -> Pairs:
    """Questions with common examples, of ragged lengths, four choices each; one whose choices are single tokens."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> list[int]:
        n = int(torch.randint(low, high, (), generator=generator))
        return torch.randint(0, 256, (n,), generator=generator).tolist()

    examples = ids(150, 151)
    pairs = []
    for _ in range(5):
        context = examples + ids(3, 90)
        pairs += [(context, ids(1, 9)) for _ in range(4)]
    pairs += [(ids(1, 30), ids(1, 30)) for _ in range(6)]
    pairs += [(examples, [token]) for token in (1, 2, 3)] + [(examples[:100], examples[100:]), ([7], [8])]
    return pairs + pairs[:2]


def defined(model: sw.LanguageModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """One request alone, in one call."""
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation]))[0][0].double()
    at = torch.arange(len(context) - 1, len(context) + len(continuation) - 1)
    wanted = torch.tensor(continuation)
    likeliest = logits[at].argmax(-1) == wanted
    return float(logits.log_softmax(-1)[at, wanted].sum()), bool(likeliest.all())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_scores_are_those_of_each_request_alone(name: str, batch_size: int) -> None:
    model, pairs = MODELS[name], requests_of()
    expected = [defined(model, *pair) for pair in pairs]
    told: dict[int, Any] = {}
    for share in (True, False):
        found = score(model, pairs, batch_size=batch_size, share=share, done=told.__setitem__)
        assert [x.is_greedy for x in found] == [greedy for _, greedy in expected]
        for got, (wanted, _) in zip(found, expected):
            assert got.log_probability == pytest.approx(wanted, rel=1e-5)
        assert [told.pop(i) for i in range(len(pairs))] == found


def test_scores_in_float64_and_greedy_continuations() -> None:
    model = model_of(MAMBA).double()
    pairs = requests_of(1)
    (token,) = sw.generate(model, torch.tensor(pairs[0][0]), max_new_tokens=1, temperature=0)
    pairs.append((pairs[0][0], token.ids.tolist()))
    found = score(model, pairs)
    for got, pair in zip(found, pairs):
        assert got.log_probability == pytest.approx(defined(model, *pair)[0], rel=1e-12)
    assert found[-1].is_greedy
    assert not found[0].is_greedy


def test_every_sequence_is_its_way_through_the_tree() -> None:
    sequences = [[*context, *continuation] for context, continuation in requests_of()]
    found: dict[int, list[int]] = {}
    n_read = 0

    def read(batch: list[Any], state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The state is the text itself."""
        nonlocal n_read
        texts = []
        for row, segment in enumerate(batch):
            n_read += len(segment)
            before = [int(x) for x in state[0][row] if x >= 0]
            texts.append(before + list(segment.tokens[segment.begin : segment.end]))
            found.update(dict.fromkeys(segment.ends, texts[-1]))
        return (torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in texts], True, padding_value=-1),)

    walk(prefix_tree(sequences), (torch.full((1, 1), -1),), read, batch_size=3)
    assert [found[i] for i in range(len(sequences))] == sequences
    assert n_read < sum(map(len, sequences)) / 2.5
    deep = [[1] * n for n in range(1, 1200)]  # each the beginning of the next
    assert prefix_tree(deep, shortest=1)[0].members
    assert prefix_tree([]) == []


def test_common_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = model_of(MAMBA), []
    features = model.features

    def counted(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        read.append(tokens.numel())
        return features(tokens, *args, **kwargs)

    monkeypatch.setattr(model, "features", counted)
    examples, question = list(range(200)), list(range(100))
    pairs = [(examples + [i] + question, [choice, 1, 2]) for i in range(4) for choice in range(4)]
    score(model, pairs)
    assert sum(read) <= 200 + 4 * 101 + 16 * 2  # the last token of a continuation predicts nothing that is asked for


def test_bad_requests() -> None:
    model = model_of(MAMBA)
    with pytest.raises(InputError, match="request 1 has a context without tokens"):
        score(model, [([1], [2]), ([], [2])])
    with pytest.raises(InputError, match="request 0 has a continuation without tokens"):
        score(model, [([1], [])])
    with pytest.raises(InputError, match="sequence without tokens"):
        prefix_tree([[]])
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    with pytest.raises(NotFiniteError):
        score(model, [([1], [2])])


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, args, i, metadata=("test", i, 1)) for i, args in enumerate(arguments)]


def test_texts_of_requests() -> None:
    model = MODELS["mamba"]
    lm = StatewiseLM(model, tokenizer="bytes", add_bos_token=False)
    (pair, empty) = lm.loglikelihood(instances("loglikelihood", ("what is ", "this"), ("", "that")), disable_tqdm=True)
    ids = ByteTokenizer().encode
    assert pair[0] == pytest.approx(defined(model, ids("what is"), ids(" this"))[0], rel=1e-5)  # as lm-eval cuts it
    assert empty[0] == pytest.approx(defined(model, [256], ids("that"))[0], rel=1e-5)
    begun = StatewiseLM(model, tokenizer="bytes")
    (pair,) = begun.loglikelihood(instances("loglikelihood", ("what", " is")), disable_tqdm=True)
    assert pair[0] == pytest.approx(defined(model, [256, *ids("what")], ids(" is"))[0], rel=1e-5)
    with pytest.raises(DataError, match="a continuation is empty"):
        lm.loglikelihood(instances("loglikelihood", ("a", "")), disable_tqdm=True)


def test_rolling() -> None:
    model, text = MODELS["mamba"], "A text that is longer than the window, ü included. " * 3
    ids = ByteTokenizer().encode(text)
    lm = StatewiseLM(model, tokenizer="bytes")
    whole, nothing = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (text,), ("",)), disable_tqdm=True)
    nats = evaluate_text(model, ByteTokenizer(), text).nats
    assert whole == pytest.approx(-nats, rel=1e-6)
    assert nothing == 0
    (windows,) = StatewiseLM(model, tokenizer="bytes", max_length=50).loglikelihood_rolling(
        instances("loglikelihood_rolling", (text,)), disable_tqdm=True
    )
    expected = defined(model, [256], ids[:50])[0]
    for begin in range(50, len(ids), 50):
        part = ids[begin : begin + 50]
        expected += defined(model, ids[begin + len(part) - 51 : begin + len(part)][: 51 - len(part)], part)[0]
    assert windows == pytest.approx(expected, rel=1e-5)


def test_generate_until_is_generate() -> None:
    model = MODELS["mamba"]
    lm = StatewiseLM(model, tokenizer="bytes", batch_size=2)
    common = "Common examples of what to do, " * 4
    contexts = [common + "first", common + "the second one", "something else", common + "first", ""]
    options = {"until": ["q", "\n\n"], "max_gen_toks": 24, "do_sample": False}
    texts = lm.generate_until(instances("generate_until", *((c, options) for c in contexts)), disable_tqdm=True)
    for context, text in zip(contexts, texts):
        tokens = sw.generate(
            model, context, max_new_tokens=24, temperature=0, stop=options["until"], tokenizer=ByteTokenizer()
        )
        assert text == "".join(token.text[0] for token in tokens)
    sampled = {"do_sample": True, "temperature": 0.9, "top_k": 20, "max_gen_toks": 8}
    asked = instances("generate_until", *((c, sampled) for c in contexts))
    assert lm.generate_until(asked, disable_tqdm=True) == lm.generate_until(asked, disable_tqdm=True)
    with pytest.raises(DataError, match="num_beams=4"):
        lm.generate_until(instances("generate_until", ("a", {"num_beams": 4})), disable_tqdm=True)
    assert write(model, [], tokenizer=ByteTokenizer(), max_new_tokens=1, seed=0) == []


def test_lengths_that_do_not_fit() -> None:
    lm = StatewiseLM(MODELS["positions"], tokenizer="bytes")
    assert lm.max_length == 400
    long, cut = "x" * 500, "x" * 450
    (a, b) = lm.loglikelihood(instances("loglikelihood", (long, "abcd"), (cut, "abcd")), disable_tqdm=True)
    assert a == pytest.approx(b, rel=1e-5)
    with pytest.raises(DataError, match="401 tokens and max_length is 400"):
        lm.loglikelihood(instances("loglikelihood", ("a", "x" * 401)), disable_tqdm=True)
    with pytest.raises(DataError, match="leave no room"):
        lm.generate_until(instances("generate_until", ("a", {"max_gen_toks": 400})), disable_tqdm=True)


def test_opening(tmp_path: Path) -> None:
    assert get_model("statewise") is StatewiseLM
    sw.save(MODELS["mamba"], tmp_path / "model", tokenizer=ByteTokenizer())
    lm = StatewiseLM.create_from_arg_string(f"pretrained={tmp_path}/model,batch_size=4", {"device": "cpu"})
    assert (lm.batch_size, lm.tokenizer.kind, lm.get_model_info()["add_bos_token"]) == (4, "bytes", True)
    assert StatewiseLM(tmp_path / "model", dtype="auto").model.embedding.weight.dtype == torch.float32
    assert StatewiseLM(tmp_path / "model", dtype="float64").model.embedding.weight.dtype == torch.float64
    small = sw.LanguageModelConfig(vocab_size=20, d_model=8, layers=(MAMBA,)).build()
    for arguments, reason in (
        ({"pretrained": small, "tokenizer": "bytes"}, "257 ids and the model 20"),
        ({"pretrained": small}, "without its tokenizer"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "parallelize": True}, "no argument 'parallelize'"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "batch_size": 0}, "batch_size=0"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "max_length": 0}, "max_length=0"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "device": "cpu"}, "loaded from a folder"),
        ({"pretrained": str(tmp_path / "model"), "dtype": "float9"}, "dtype='float9' is unknown; use"),
        ({"pretrained": "nothing", "dtype": "int8"}, "dtype='int8' is unknown"),  # before anything is opened
        ({"pretrained": "nothing", "device": "foo"}, "device='foo' cannot be used"),
    ):
        with pytest.raises(ConfigError, match=reason):
            StatewiseLM(**arguments)
