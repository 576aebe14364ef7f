"""Log-probabilities of continuations: those of each request alone, whatever is shared and read together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scored_models import MAMBA, MODELS, defined, model_of

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import DataError, InputError, NotFiniteError
from statewise.evaluate.text.likelihood import encode_pair, keep_the_end, score
from statewise.evaluate.text.prefixes import prefix_tree, walk

Pairs = list[tuple[list[int], list[int]]]


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


def test_a_pair_is_cut_as_lm_eval_cuts_it() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode
    assert encode_pair(tokenizer, "what is ", ["this"]) == [([256, *ids("what is")], ids(" this"))]
    assert encode_pair(tokenizer, "a\n\n", ["b", "c"], document_token=False) == [
        (ids("a"), ids("\n\nb")),
        (ids("a"), ids("\n\nc")),
    ]
    assert encode_pair(tokenizer, "", [" b"], document_token=False) == [([256], ids(" b"))]
    with pytest.raises(DataError, match="the continuation '' adds no token"):
        encode_pair(tokenizer, "a", [""])


def test_a_long_context_loses_its_beginning() -> None:
    assert keep_the_end([1, 2, 3], [4, 5], None) == ([1, 2, 3], [4, 5])
    assert keep_the_end([1, 2, 3], [4, 5], 4) == ([1, 2, 3], [4, 5])
    assert keep_the_end([1, 2, 3], [4, 5], 3) == ([2, 3], [4, 5])
    with pytest.raises(DataError, match="2 tokens and max_length is 1"):
        keep_the_end([1, 2, 3], [4, 5], 1)
