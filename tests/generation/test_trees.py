"""n continuations of each prompt, the best of several, and beam search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from written_models import build, ids_of, with_readings

import statewise as sw
from statewise.errors import InputError
from statewise.generation import read

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
KERNELS = ("auto", "torch")


def single(window: int | None = 5, vocab_size: int = 31, dtype: torch.dtype = torch.float64) -> sw.LanguageModel:
    return build(window, vocab_size=vocab_size, dtype=dtype).eval()


def scores(model: sw.LanguageModel, prompt: list[int], rows: torch.Tensor) -> torch.Tensor:
    """The log-probability of each row (n, length) behind the prompt, token by token."""
    with torch.no_grad():
        logits, _ = model(torch.cat([torch.tensor(prompt).expand(len(rows), -1), rows], 1))
    return logits[:, len(prompt) - 1 : -1].log_softmax(-1).gather(2, rows[..., None])[..., 0]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_n_rows_say_what_the_prompt_given_n_times_says(kernels: str, dtype: torch.dtype) -> None:
    model = single(dtype=dtype)
    options: dict[str, Any] = {"max_new_tokens": 70, "seed": 3, "document_token": 0, "repetition_penalty": 1.1}
    with sw.kernels.use(kernels):
        found = list(sw.generate(model, PROMPTS, n=4, **options))
        wanted = list(sw.generate(model, [ids for ids in PROMPTS for _ in range(4)], **options))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.finished, other.finished)
        torch.testing.assert_close(one.log_probabilities, other.log_probabilities, rtol=1e-3, atol=1e-3)


def test_a_document_token_that_begins_anew() -> None:
    model = single(vocab_size=7)
    options: dict[str, Any] = {"max_new_tokens": 30, "seed": 3, "document_token": 0, "stop_at_document": False}
    found = ids_of(sw.generate(model, PROMPTS[:1], n=4, **options))
    assert found == ids_of(sw.generate(model, PROMPTS[:1] * 4, **options))
    assert any(0 in row for row in found)


def test_the_prompt_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = single(), []
    features = model.features

    def counted(tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
        rows.append(tuple(tokens.shape))
        return features(tokens, *args, **options)

    monkeypatch.setattr(model, "features", counted)
    list(sw.generate(model, [1] * 200, n=8, max_new_tokens=3))
    assert rows == [(1, 200), (8, 1), (8, 1)]


@pytest.mark.parametrize("kernels", KERNELS)
def test_each_has_a_reading_of_its_own(kernels: str) -> None:
    model = single(dtype=torch.float32)
    with sw.kernels.use(kernels):
        tokens, readings = with_readings(sw.generate(model, PROMPTS, n=2, max_new_tokens=20, seed=1))
        rest = list(sw.generate(model, state=readings[5], max_new_tokens=15, temperature=0))
    assert tuple(readings[5].logits.shape) == (6, 31)
    ids = torch.stack([token.ids for token in tokens], 1)
    for row in range(6):
        prompt = [*PROMPTS[row // 2], *ids[row, :5].tolist()]
        alone = list(sw.generate(model, prompt, max_new_tokens=15, temperature=0))
        assert [int(token.ids) for token in alone] == [int(token.ids[row]) for token in rest]


def test_continuing_a_state() -> None:
    model = single()
    found = ids_of(sw.generate(model, state=read(model, PROMPTS[0]), n=3, max_new_tokens=9, seed=0))
    assert found == ids_of(sw.generate(model, PROMPTS[0], n=3, max_new_tokens=9, seed=0))


@pytest.mark.parametrize("n", [1, 2])
def test_the_best_have_the_highest_means(n: int) -> None:
    model, options = single(), {"max_new_tokens": 12, "seed": 5, "document_token": 0}
    every = list(sw.generate(model, PROMPTS, n=6, **options))
    found, readings = with_readings(sw.generate(model, PROMPTS, n=n, best_of=6, **options))
    rows, own = ids_of(iter(every)), torch.stack([token.log_probabilities for token in every], 1)
    for i in range(len(PROMPTS)):
        means = {row: float(own[row].sum()) / len(rows[row]) for row in range(6 * i, 6 * i + 6)}
        wanted = sorted(means, key=lambda row: -means[row])[:n]
        assert ids_of(iter(found))[n * i : n * i + n] == [rows[row] for row in wanted]
    last = [i for i, token in enumerate(found) if bool(token.finished.all())] or [len(found) - 1]
    assert last[0] == len(found) - 1
    again = list(sw.generate(model, state=readings[0], max_new_tokens=1, temperature=0))
    assert again[0].ids.shape == found[0].ids.shape


@pytest.mark.parametrize("kernels", KERNELS)
def test_as_many_beams_as_texts_find_the_best_of_all(kernels: str) -> None:
    model, depth = single(vocab_size=4), 4
    every = torch.tensor(list(itertools.product(range(4), repeat=depth)))
    with sw.kernels.use(kernels):
        found = list(sw.generate(model, PROMPTS[:1] * 2, beams=4**depth, n=5, max_new_tokens=depth))
    sums = scores(model, PROMPTS[0], every)
    order = sums.sum(1).sort(descending=True).indices[:5]
    assert torch.stack([token.ids for token in found], 1).tolist() == every[order].tolist() * 2
    own = torch.stack([token.log_probabilities for token in found], 1)[:5]
    torch.testing.assert_close(own, sums[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_the_best_of_all_where_texts_end(penalty: float) -> None:
    """Each text up to its first 0: with enough beams the one of the best score is found, whatever the penalty."""
    model, depth = single(vocab_size=4), 4
    texts = {row[: row.index(0) + 1] if 0 in row else row for row in itertools.product(range(4), repeat=depth)}
    own = {text: float(scores(model, PROMPTS[0], torch.tensor([text])).sum()) for text in texts}
    best = max(texts, key=lambda text: own[text] / len(text) ** penalty)
    options: dict[str, Any] = {"beams": 4**depth, "length_penalty": penalty, "document_token": 0}
    assert ids_of(sw.generate(model, PROMPTS[0], max_new_tokens=depth, **options)) == [list(best)]


def test_beams_on_the_decoder_and_on_the_model() -> None:
    model = single(window=None, dtype=torch.float32)
    options: dict[str, Any] = {"beams": 4, "n": 4, "max_new_tokens": 80, "document_token": 0}
    in_c = ids_of(sw.generate(model, PROMPTS, **options))
    assert ids_of(sw.generate(model, PROMPTS, weights=sw.decoding.Decoder(model), **options)) == in_c
    with sw.kernels.use("torch"):
        assert ids_of(sw.generate(model, PROMPTS, **options)) == in_c
    assert ids_of(sw.generate(single(window=None), PROMPTS, **options)) == in_c


def test_one_beam_is_greedy() -> None:
    model = single()
    found = ids_of(sw.generate(model, PROMPTS, beams=1, max_new_tokens=20, document_token=0))
    assert found == ids_of(sw.generate(model, PROMPTS, temperature=0, max_new_tokens=20, document_token=0))


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("n_ends", [0, 1])
def test_the_beams_of_transformers(penalty: float, n_ends: int) -> None:
    """Its own search over the same model, whose cache is copied for each beam."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from statewise.integrations.transformers import from_statewise

    model = single(vocab_size=11)
    wrapped = from_statewise(model)
    for prompt in PROMPTS:
        theirs = wrapped.generate(
            torch.tensor([prompt]),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=12,
            length_penalty=penalty,
            eos_token_id=0 if n_ends else None,
            pad_token_id=0,
            do_sample=False,
        )[:, len(prompt) :].tolist()
        document = {"document_token": 0} if n_ends else {}
        ours = ids_of(sw.generate(model, prompt, beams=4, n=4, max_new_tokens=12, length_penalty=penalty, **document))
        assert [row + [0] * (len(theirs[0]) - len(row)) for row in ours] == theirs


def test_texts() -> None:
    model, tokenizer = single(vocab_size=257), sw.ByteTokenizer()
    for options in ({"n": 3, "seed": 0}, {"n": 2, "best_of": 4, "seed": 0}, {"n": 2, "beams": 3}):
        found = list(sw.generate(model, "ab", max_new_tokens=9, tokenizer=tokenizer, **options))  # type: ignore[arg-type]
        rows = ids_of(iter(found))
        texts = ["".join(parts) for parts in zip(*(token.text or [] for token in found))]
        ends = [tokenizer.document_token]
        assert texts == [tokenizer.decode([i for i in row if i not in ends]) for row in rows]


def test_no_tokens() -> None:
    for options in ({"n": 3}, {"best_of": 4}, {"beams": 3}):
        assert not list(sw.generate(single(), [1], max_new_tokens=0, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n=0 is out of range"),
        ({"best_of": True}, "best_of=True is out of range"),
        ({"n": 3, "best_of": 2}, "n=3 of best_of=2"),
        ({"n": 3, "beams": 2}, "n=3 of beams=2"),
        ({"best_of": 2, "beams": 2}, "give one of them"),
        ({"length_penalty": 0.5}, "is for beams"),
        ({"beams": 2, "length_penalty": "1"}, "is not a number"),
        ({"beams": 2, "length_penalty": float("nan")}, "out of range"),
        ({"beams": 2, "top_k": 4}, "draws nothing"),
        ({"beams": 2, "temperature": 0.5}, "draws nothing"),
        ({"beams": 2, "stop": "x", "tokenizer": sw.ByteTokenizer()}, "compares whole texts"),
        ({"n": 2, "draft": "itself"}, "a draft goes with one"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    model = single(vocab_size=257)
    options = {name: model if value == "itself" else value for name, value in options.items()}
    with pytest.raises(InputError, match=message):
        sw.generate(model, [1], max_new_tokens=3, **options)


def test_more_than_there_are() -> None:
    with pytest.raises(InputError, match="there are no 6 continuations of 1 tokens"):
        list(sw.generate(single(vocab_size=4), [1], max_new_tokens=1, n=6, beams=6))
