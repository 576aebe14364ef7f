"""Speculative decoding: greedy, the tokens without a draft; sampled, their distribution."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from decoded_models import needs_library
from torch import Tensor

import statewise as sw
from statewise.decoding import Decoder
from statewise.errors import InputError
from statewise.generation.sample import Sampling, draw
from statewise.generation.speculation import Speculation

VOCABULARY = 13
HYBRID = (
    sw.Mamba2Config(d_state=8, d_head=8),
    sw.AttentionConfig(n_heads=2, window=6),
    sw.GatedDeltaNetConfig(n_heads=2),
    sw.AttentionConfig(n_heads=2),
)
SMALL = (sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=1))
NO_C = (sw.Mamba3Config(d_state=8, d_head=8), sw.S4DConfig(d_state=4))


def build(layers: tuple[Any, ...], seed: int = 0, vocab_size: int = VOCABULARY, **options: Any) -> sw.LanguageModel:
    torch.manual_seed(seed)
    options = {"embedding_std": 0.3, "tie_embeddings": False, **options}
    model = sw.LanguageModelConfig(vocab_size=vocab_size, d_model=16, layers=layers, **options).build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(4)
    return model


def similar(model: sw.LanguageModel, noise: float) -> sw.LanguageModel:
    """A draft that says nearly the same."""
    draft = model.config.build()
    draft.load_state_dict(model.state_dict())
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return draft.eval()


def prompts(n: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randint(VOCABULARY, (1 + i % 5,), generator=generator).tolist() for i in range(n)]


def written(tokens: list[Any]) -> list[list[int]]:
    return torch.stack([token.ids for token in tokens], 1).tolist()


@needs_library
@pytest.mark.parametrize("draft_tokens", [1, 4, 7])
@pytest.mark.parametrize("draft", ["itself", "similar", "other"])
def test_greedy_tokens_of_one_row_are_the_same_bit_for_bit(draft: str, draft_tokens: int) -> None:
    """With their log-probabilities, whatever the draft is."""
    model = build(HYBRID)
    drafts = {"itself": model, "similar": similar(model, 0.02), "other": build(SMALL, 3)}
    decoder = Decoder(model)
    for prompt in prompts(8):
        options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0, "weights": decoder}
        without = list(sw.generate(model, prompt, **options))
        assert len(set(written(without)[0])) > 3
        found = list(sw.generate(model, prompt, draft=drafts[draft], draft_tokens=draft_tokens, **options))
        assert written(found) == written(without)
        for one, other in zip(found, without, strict=True):
            assert torch.equal(one.log_probabilities, other.log_probabilities)
            assert torch.equal(one.finished, other.finished)


@pytest.mark.parametrize("layers", [HYBRID, NO_C])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_rows_that_accept_different_counts(layers: tuple[Any, ...], kernels: str) -> None:
    """A row says what it says alone; in C, by a model without a step in C, and where C is not wanted."""
    model = build(layers)
    options: dict[str, Any] = {"max_new_tokens": 25, "temperature": 0, "document_token": 3, "repetition_penalty": 1.1}
    with sw.kernels.use(kernels):
        for stop_at_document in (True, False):
            options["stop_at_document"] = stop_at_document
            alone = [written(list(sw.generate(model, prompt, **options)))[0] for prompt in prompts(6)]
            found = list(sw.generate(model, prompts(6), draft=similar(model, 0.1), draft_tokens=3, **options))
            longest = max(map(len, alone))
            assert written(found) == [row + [-1] * (longest - len(row)) for row in alone]


def test_texts_stops_and_readings() -> None:
    """Stop strings within what was drafted, and the reading of a token, from which generation goes on."""
    tokenizer = sw.ByteTokenizer()
    model = build(HYBRID, vocab_size=257)
    draft = similar(model, 0.01)
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0, "tokenizer": tokenizer}
    texts = ["def", "class A"]
    without = list(sw.generate(model, texts, **options))
    found = list(sw.generate(model, texts, draft=draft, **options))
    assert [token.text for token in found] == [token.text for token in without]
    whole = "".join(token.text[0] for token in without)
    stop = whole[11:13]
    stopped = sw.generate(model, texts, draft=draft, stop=stop, **options)
    assert "".join(token.text[0] for token in stopped) == whole[: whole.index(stop)]
    for t, token in enumerate(sw.generate(model, [[1, 2], [3]], draft=draft, max_new_tokens=20, temperature=0)):
        if t == 7:
            torch.testing.assert_close(token.reading.logits.argmax(-1), token.ids)
            again = [int(x.ids[0]) for x in sw.generate(model, state=token.reading, max_new_tokens=5, temperature=0)]
    alone = [int(x.ids[0]) for x in sw.generate(model, [1, 2], max_new_tokens=20, temperature=0)]
    assert again == alone[7:12]


class Fixed:
    """A model whose next token depends on the latest alone: ``table`` (vocabulary, vocabulary) of logits."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def read(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        return self.table[tokens]

    def keep(self, counts: Tensor) -> None:
        pass


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_k=3), Sampling(top_p=0.8), Sampling(temperature=1.4, min_p=0.1)],
)
def test_the_distribution_of_what_is_sampled(sampling: Sampling) -> None:
    """A chi-square test of the first three tokens together, over 20,000 rows of one round, from p and q far apart."""
    torch.manual_seed(0)
    n, vocabulary = 20_000, 5
    p, q = (1.2 * torch.randn(vocabulary, vocabulary, dtype=torch.float64) for _ in range(2))
    generators = [torch.Generator().manual_seed(i) for i in range(n)]
    seen = torch.zeros(n, vocabulary, dtype=torch.bool)
    rounds = Speculation(Fixed(p), Fixed(q), sampling, generators, [[0]] * n, seen, None, None)
    first = rounds.round([2] * n, [True] * n)
    assert 0.01 * n < int((first.n_accepted == 2).sum()) < 0.95 * n
    found = [row[: k + 1] for row, k in zip(first.tokens.tolist(), first.n_accepted.tolist())]
    while any(len(row) < 3 for row in found):
        more = rounds.round([2] * n, [len(row) < 3 for row in found])
        for row, tokens, k in zip(found, more.tokens.tolist(), more.n_accepted.tolist()):
            row += tokens[: k + 1] if len(row) < 3 else []
    own = sampling.apply(p, torch.zeros(vocabulary, vocabulary, dtype=torch.bool)).softmax(-1)
    counts = dict.fromkeys(itertools.product(range(vocabulary), repeat=3), 0)
    for row in found:
        counts[tuple(row[:3])] += 1
    expected = {
        three: n * float(own[0, three[0]] * own[three[0], three[1]] * own[three[1], three[2]]) for three in counts
    }
    assert all(counts[three] == 0 for three in counts if expected[three] == 0)
    assert chi_square(counts, expected) > 1e-3


def chi_square(counts: dict[Any, int], expected: dict[Any, float]) -> float:
    """The probability of as large a statistic; cells of fewer than five are put together."""
    from scipy.stats import chi2

    cells = [(counts[key], expected[key]) for key in counts if expected[key] >= 5]
    rest = [(counts[key], expected[key]) for key in counts if 0 < expected[key] < 5]
    if sum(e for _, e in rest) >= 5:
        cells.append((sum(c for c, _ in rest), sum(e for _, e in rest)))
    return float(chi2.sf(sum((c - e) ** 2 / e for c, e in cells), len(cells) - 1))


def test_sampling_repeats_and_rows_do_not_depend_on_others() -> None:
    model = build(HYBRID)
    options: dict[str, Any] = {"max_new_tokens": 24, "draft": similar(model, 0.1), "top_k": 6, "temperature": 0.9}
    many = written(list(sw.generate(model, prompts(4), seed=5, **options)))
    assert many == written(list(sw.generate(model, prompts(4), seed=5, **options)))
    for row, prompt in enumerate(prompts(4)):
        assert many[row : row + 1] == written(list(sw.generate(model, prompt, seed=5 + row, **options)))
    assert many != written(list(sw.generate(model, prompts(4), seed=6, **options)))


def test_a_reading_stays_as_it_was() -> None:
    """Also what the repetition penalty knows of it."""
    model = build(HYBRID)
    reading = sw.generation.read(model, [[1, 2, 3]])
    options: dict[str, Any] = {"max_new_tokens": 15, "temperature": 0, "repetition_penalty": 1.8, "state": reading}
    plain = written(list(sw.generate(model, **options)))
    seen = reading.seen.clone()
    tokens = []
    for token in sw.generate(model, draft=similar(model, 0.1), **options):
        tokens.append(token)
        assert token.reading.seen.sum() < 3 + len(tokens)
    assert written(tokens) == plain
    assert torch.equal(reading.seen, seen)
    assert written(list(sw.generate(model, **options))) == plain


def test_what_does_not_fit_is_refused() -> None:
    model = build(HYBRID)
    for wrong, match in (
        ({"draft": build(SMALL, vocab_size=7)}, "vocabulary of 7"),
        ({"draft": "small"}, "must be a language model"),
        ({"draft": model, "draft_tokens": 0}, "draft_tokens=0"),
        ({"draft": model, "draft_weights": "int9"}, "int9"),
        ({"draft_tokens": 3}, "draft="),
    ):
        with pytest.raises(InputError, match=match):
            sw.generate(model, [1], max_new_tokens=3, **wrong)
    assert list(sw.generate(model, [1], max_new_tokens=0, draft=model)) == []


def test_the_draw_of_the_residual() -> None:
    """Where a drafted token is refused, what is drawn has more probability in p than in q."""
    p, q = torch.tensor([[0.1, 0.6, 0.3]]).double(), torch.tensor([[0.5, 0.3, 0.2]]).double()
    residual = (p - q).clamp(min=0)
    drawn = [int(draw(residual.log(), torch.tensor([u], dtype=torch.float64))) for u in torch.linspace(0, 0.99, 50)]
    assert set(drawn) == {1, 2}
