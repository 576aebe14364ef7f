"""Generation: step by step equals at once, ragged equals single, forked and saved equals straight."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.decoding import why_not
from statewise.errors import InputError
from statewise.generation import Reading, Token, generate, read
from statewise.generation.reading_file import load_reading, save_reading

MAMBA = sw.Mamba2Config(d_state=8, d_head=8, n_groups=2, chunk_length=16)


def build(window: int | None, *, vocab_size: int = 31, dtype: torch.dtype = torch.float64) -> sw.LanguageModel:
    """A small hybrid with logits well apart, whose state is not forgotten at once."""
    torch.manual_seed(0)
    layers = (MAMBA, sw.AttentionConfig(n_heads=2, window=window))
    config = sw.LanguageModelConfig(
        vocab_size=vocab_size, d_model=16, layers=layers, embedding_std=0.3, tie_embeddings=False
    )
    model = config.build().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(4)
    return model


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    return build(window=5)


def ids_of(tokens: Iterator[Token]) -> list[list[int]]:
    """The ids of each row, without what follows its end."""
    columns = [token.ids.tolist() for token in tokens]
    return [[i for i in row if i >= 0] for row in zip(*columns)]


def with_readings(stream: Iterator[Token]) -> tuple[list[Token], list[Reading]]:
    """The tokens, and the reading of each while it is there."""
    tokens, readings = [], []
    for token in stream:
        tokens.append(token)
        readings.append(token.reading)
    return tokens, readings


def state_bytes(state: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))


# Step by step equals at once


@dataclass
class LongRun:
    model: sw.LanguageModel
    ids: Tensor  # (n + 1,), the prompt's one token first
    log_probabilities: Tensor  # (n,)
    likeliest: Tensor  # (n,)
    state_bytes: list[int]  # after every 500 tokens
    calls: list[tuple[int, ...]]  # the shapes the model was called with
    decoded: bool


@pytest.fixture(scope="module", params=[("torch", 1500), ("auto", 10_000)])
def long_run(request: pytest.FixtureRequest) -> LongRun:
    """By calls of the model, and by a decoder's where there is one."""
    model = build(window=32, dtype=torch.float32).eval()
    calls: list[tuple[int, ...]] = []
    features = model.features

    def counted(tokens: Tensor, *arguments: Any, **options: Any) -> Any:
        calls.append(tuple(tokens.shape))
        return features(tokens, *arguments, **options)

    model.features = counted  # type: ignore[method-assign]
    ids, log_probabilities, likeliest, sizes = [torch.tensor([3])], [], [], []
    backend, n_tokens = request.param
    with sw.kernels.use(backend):
        stream = generate(model, [3], max_new_tokens=n_tokens, seed=0)
    for n, token in enumerate(stream):
        ids.append(token.ids)
        log_probabilities.append(token.log_probabilities)
        reading = token.reading
        likeliest.append(reading.logits.argmax(-1))
        if n % 500 == 499:
            sizes.append(state_bytes(reading))
    del model.features
    decoded = backend == "auto" and why_not(model) is None
    return LongRun(model, torch.cat(ids), torch.cat(log_probabilities), torch.cat(likeliest), sizes, calls, decoded)


def test_10_000_tokens_step_by_step_equal_one_forward(long_run: LongRun) -> None:
    with torch.no_grad():
        logits, _ = long_run.model(long_run.ids[None, :-1])
    assert logits.shape[1] == len(long_run.ids) - 1
    best = logits[0].topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-4
    assert clear.float().mean() > 0.99
    assert torch.equal(logits[0].argmax(-1)[clear], long_run.likeliest[clear])
    expected = logits[0].log_softmax(-1).gather(1, long_run.ids[1:, None])[:, 0]
    torch.testing.assert_close(long_run.log_probabilities, expected, rtol=1e-4, atol=1e-4)
    # The text did not fall into a loop: no id and no stretch of four takes it over (7 % and 0.1 % when written)
    ids = long_run.ids[-5000:]
    assert 16 <= len(ids.unique()) <= 31
    assert ids.bincount().max() < 2500
    assert ids.unfold(0, 4, 1).unique(dim=0, return_counts=True)[1].max() < 1000


def test_a_token_costs_one_step_and_no_memory_however_many_came_before(long_run: LongRun) -> None:
    n_calls = 1 if long_run.decoded else len(long_run.ids) - 1  # the prompt's one token is read by the model
    assert long_run.calls == [(1, 1)] * n_calls
    assert len(set(long_run.state_bytes)) == 1


@pytest.mark.parametrize("window", [5, None])
def test_every_segment_continued_from_the_state_before_it_gives_the_same_logits(window: int | None) -> None:
    model = build(window)
    prompt = torch.randint(31, (1, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, _ = model(prompt)
        for begin in range(17):
            before = read(model, prompt[:, :begin]).state if begin else model.initial_state(1)
            for end in range(begin + 1, 18):
                logits, _ = model(prompt[:, begin:end], before)
                torch.testing.assert_close(logits, whole[:, begin:end], rtol=1e-9, atol=1e-9)
                last = read(model, prompt[:, begin:end], state=before).logits
                torch.testing.assert_close(last, whole[:, end - 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prefill_chunk", [1, 3, 8, 17, 1000])
def test_the_prompt_is_read_in_chunks_of_any_length(model: sw.LanguageModel, prefill_chunk: int) -> None:
    prompts = [list(range(17)), [5], [8, 8, 2, 4]]
    whole = [read(model, prompt) for prompt in prompts]
    got = read(model, prompts, prefill_chunk=prefill_chunk)
    for i, single in enumerate(whole):
        torch.testing.assert_close(got.logits[i : i + 1], single.logits, rtol=1e-9, atol=1e-9)
        assert torch.equal(got.seen[i : i + 1], single.seen)
        assert torch.equal(got.recent[i : i + 1], single.recent)
        assert got.state.position[i] == len(prompts[i])
    assert whole[0].recent.tolist() == [list(range(9, 17))]
    assert whole[1].recent.tolist() == [[-1] * 7 + [5]]
    assert whole[2].seen[0].nonzero()[:, 0].tolist() == [2, 4, 8]


# Rows


@pytest.mark.parametrize("document_token", [None, 4])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 9, "min_p": 0.01, "repetition_penalty": 1.3}])
def test_a_ragged_batch_equals_single_runs(
    model: sw.LanguageModel, document_token: int | None, options: dict[str, Any]
) -> None:
    prompts = [[1], [2, 3, 5, 7, 11, 13, 17], list(range(5, 22)), [9, 9]]
    options = {"max_new_tokens": 40, "document_token": document_token, **options}
    together, readings = with_readings(generate(model, prompts, seed=3, **options))
    lengths = []
    for i, prompt in enumerate(prompts):
        alone = list(generate(model, prompt, seed=3 + i, **options))
        n = len(alone)
        lengths.append(n)
        assert [int(token.ids[i]) for token in together[:n]] == [int(token.ids) for token in alone]
        torch.testing.assert_close(
            torch.stack([token.log_probabilities[i] for token in together[:n]]),
            torch.cat([token.log_probabilities for token in alone]),
            rtol=1e-9,
            atol=1e-9,
        )
        # A row that has finished stays finished, draws nothing and reads nothing more
        assert [bool(token.finished[i]) for token in together] == [bool(token.finished) for token in alone] + [True] * (
            len(together) - n
        )
        for token, reading in zip(together[n:], readings[n:]):
            assert token.ids[i] == -1
            assert token.log_probabilities[i] == 0
            assert torch.equal(reading.logits[i], readings[n - 1].logits[i])
            assert reading.state.position[i] == len(prompt) + n - 1
    assert len(together) == max(lengths)
    if document_token is not None and options.get("temperature") != 0.0:
        assert len(set(lengths)) > 1


def test_a_padded_batch_equals_a_list(model: sw.LanguageModel) -> None:
    padded = torch.tensor([[3, 1, 4], [1, 10**9, -5]])
    got = ids_of(generate(model, padded, lengths=torch.tensor([3, 1]), max_new_tokens=12, seed=0))
    assert got == ids_of(generate(model, [[3, 1, 4], [1]], max_new_tokens=12, seed=0))


# Seeds


def test_seeds_and_only_they_decide(model: sw.LanguageModel) -> None:
    global_state = torch.get_rng_state()
    first = ids_of(generate(model, [1], max_new_tokens=20, seed=5))
    torch.manual_seed(99)
    assert ids_of(generate(model, [1], max_new_tokens=20, seed=5)) == first
    assert ids_of(generate(model, [1], max_new_tokens=20, seed=6)) != first
    assert ids_of(generate(model, [1], max_new_tokens=20)) != ids_of(generate(model, [1], max_new_tokens=20))
    torch.set_rng_state(global_state)
    list(generate(model, [1], max_new_tokens=3))
    assert torch.equal(torch.get_rng_state(), global_state)
    assert ids_of(generate(model, [[1], [1]], max_new_tokens=20, seed=2**63 - 1))[0] != first[0]


def test_frequencies_are_the_models(model: sw.LanguageModel) -> None:
    token = next(generate(model, [[1, 2]] * 4000, max_new_tokens=1, seed=0))
    expected = token.reading.logits[0].softmax(-1)
    got = torch.bincount(token.ids, minlength=31) / 4000
    assert (got - expected).abs().max() < 0.03


# Log-probabilities


def test_log_probabilities_are_the_models_own(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.5}
    prompt = [1, 2, 3]
    tokens = list(generate(model, prompt, max_new_tokens=15, seed=0, **options))
    ids = torch.tensor([prompt + [int(token.ids) for token in tokens]])
    with torch.no_grad():
        logits, _ = model(ids)
    expected = logits[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    got = torch.cat([token.log_probabilities for token in tokens])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_the_repetition_penalty_counts_the_prompt_and_what_was_written(model: sw.LanguageModel) -> None:
    prompt = [1, 2]
    options: dict[str, Any] = {"max_new_tokens": 25, "temperature": 0, "repetition_penalty": 1e6}
    tokens, readings = with_readings(generate(model, prompt, **options))
    written = [int(token.ids) for token in tokens]
    for n, reading in enumerate(readings):
        seen = set(prompt + written[:n])
        assert set(reading.seen[0].nonzero()[:, 0].tolist()) == seen
        if written[n] in seen:  # only where every other id has a negative logit
            others = [i for i in range(31) if i not in seen]
            assert (reading.logits[0, others] < 0).all()


# States


def test_a_reading_generates_as_the_prompt_does_also_from_a_file(model: sw.LanguageModel, tmp_path: Path) -> None:
    prompts = [list(range(20)), [7, 7, 1]]
    options: dict[str, Any] = {"max_new_tokens": 20, "seed": 1, "repetition_penalty": 1.4, "top_p": 0.95}
    straight = ids_of(generate(model, prompts, **options))
    reading = read(model, prompts)
    assert ids_of(generate(model, state=reading, **options)) == straight
    assert ids_of(generate(model, [[], []], state=reading, **options)) == straight
    save_reading(reading, tmp_path / "reading", model=model)
    assert ids_of(generate(model, state=load_reading(tmp_path / "reading", model=model), **options)) == straight


def test_a_prompt_after_a_reading_continues_it(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 10, "seed": 1, "repetition_penalty": 1.4}
    straight = ids_of(generate(model, [[1, 2, 3, 4], [5, 6]], **options))
    for state in (read(model, [[1, 2], [5]]), read(model, [[1], [5, 6]])):
        n = state.state.position.tolist()
        rest = [[1, 2, 3, 4][n[0] :], [5, 6][n[1] :]]
        assert ids_of(generate(model, rest, state=state, **options)) == straight
    bare = read(model, [[1, 2], [5]]).state
    del options["repetition_penalty"]  # a bare state does not know what was read
    straight = ids_of(generate(model, [[1, 2, 3, 4], [5, 6]], **options))
    assert ids_of(generate(model, [[3, 4], [6]], state=bare, **options)) == straight


@pytest.mark.parametrize("window", [5, None])
def test_generation_can_be_forked_from_any_token(window: int | None) -> None:
    model = build(window)
    options: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.2}
    tokens, readings = with_readings(generate(model, [[1, 2, 3]], max_new_tokens=12, **options))
    held = readings[0]
    before = tree_map(torch.clone, held)
    straight = [int(token.ids) for token in tokens]
    for n, (token, reading) in enumerate(zip(tokens, readings)):
        for _ in range(2):  # a second fork from the same place
            again = ids_of(generate(model, state=reading, max_new_tokens=12 - n, **options))
            assert again == [straight[n:]]
        onwards = ids_of(generate(model, token.ids[:, None], state=reading, max_new_tokens=11 - n, **options))
        assert onwards == ([straight[n + 1 :]] if n < 11 else [])
    assert ids_of(generate(model, state=held, max_new_tokens=12, **options)) == [straight]
    torch.testing.assert_close(held.logits, before.logits, rtol=0, atol=0)
    expected, _ = model(torch.tensor([[5]]), before.state)
    torch.testing.assert_close(model(torch.tensor([[5]]), held.state)[0], expected, rtol=1e-9, atol=1e-9)


def test_tokens_that_are_kept_hold_no_state_but_the_last_ones(
    model: sw.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = model.features
    made: list[weakref.ref[Tensor]] = []  # the tensors of every state, one list for each token
    per_token = len(tree_leaves(model.initial_state(1)))

    def watched(*arguments: Any, **options: Any) -> Any:
        found, state = features(*arguments, **options)
        made.extend(weakref.ref(leaf) for leaf in tree_leaves(state))
        return found, state

    monkeypatch.setattr(model, "features", watched)
    stream = generate(model, [1], max_new_tokens=40, seed=0)
    kept = []
    for n, token in enumerate(stream, 1):
        kept.append(token)
        assert len(made) == n * per_token
        # Attention hands a buffer on from state to state: what is alive must be the latest state's, whoever made it
        latest = {id(leaf()) for leaf in made[-per_token:]}
        assert len(latest) == per_token
        assert {id(leaf()) for leaf in made if leaf() is not None} == latest
    for token in kept:  # nor do the fields hold on to more than they show
        for field in (token.ids, token.log_probabilities, token.finished):
            assert field.untyped_storage().nbytes() == field.element_size()
    last = kept.pop()
    for token in kept:
        with pytest.raises(InputError, match=r"let go when the next was made; read token\.reading at once"):
            token.reading  # noqa: B018
    again = ids_of(generate(model, state=last.reading, max_new_tokens=1, temperature=0))
    assert again == [[int(last.reading.logits.argmax())]]
    del last, token
    assert not any(leaf() is not None for leaf in made)
    assert len(kept) == 39


def test_a_reading_is_no_inference_tensor_and_can_be_trained_with(model: sw.LanguageModel) -> None:
    reading = read(model, [1, 2, 3])
    token = next(generate(model, [1, 2, 3], max_new_tokens=1, seed=0))
    leaves = [*tree_leaves(reading), *tree_leaves(token.reading), token.ids, token.log_probabilities, token.finished]
    assert not any(leaf.is_inference() for leaf in leaves)
    logits, _ = model(torch.tensor([[4, 5]]), token.reading.state)
    logits.sum().backward()
    with torch.no_grad():
        model(torch.tensor([[4]]), reading.state)
    model.zero_grad()


# Documents


def test_the_document_token_ends_a_row_or_begins_a_document(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 200, "seed": 0, "document_token": 4}
    ended = list(generate(model, [1], **options))
    assert ended[-1].ids.tolist() == [4]
    assert ended[-1].finished.tolist() == [True]
    assert not any(token.finished or token.ids == 4 for token in ended[:-1])
    tokens, readings = with_readings(generate(model, [1], stop_at_document=False, **options))
    ids = [int(token.ids) for token in tokens]
    assert ids[: len(ended)] == [int(token.ids) for token in ended]
    assert len(ids) == 200
    assert not any(token.finished for token in tokens)
    at = len(ended)  # the first token after the document token
    assert ids[at + 2 : at + 6].count(4) == 0
    alone = read(model, [4, *ids[at : at + 5]])
    torch.testing.assert_close(readings[at + 5].logits, alone.logits, rtol=1e-9, atol=1e-9)
    assert readings[at + 5].state.position.item() == 6


def test_documents_in_a_prompt_know_nothing_of_each_other(model: sw.LanguageModel) -> None:
    together = read(model, [[4, 1, 2, 4, 3, 5], [7, 4]], document_token=4, prefill_chunk=4)
    for i, document in enumerate(([4, 3, 5], [4])):
        torch.testing.assert_close(together.logits[i : i + 1], read(model, document).logits, rtol=1e-9, atol=1e-9)
    zero = read(model, [[0, 1, 2, 0, 3, 5], [0, 7]], document_token=0)  # padding is 0 as well
    for i, document in enumerate(([0, 3, 5], [0, 7])):
        torch.testing.assert_close(zero.logits[i : i + 1], read(model, document).logits, rtol=1e-9, atol=1e-9)
        assert zero.state.position[i] == len(document)
    carried = read(model, [4, 1, 2, 4, 3, 5]).logits
    assert not torch.allclose(together.logits[:1], carried)
    onwards = read(model, [4, 3, 5], state=read(model, [4, 1, 2], document_token=4), document_token=4)
    torch.testing.assert_close(onwards.logits, together.logits[:1], rtol=1e-9, atol=1e-9)


BYTES = ByteTokenizer()


def test_without_a_tokenizer_there_is_no_text(model: sw.LanguageModel) -> None:
    assert next(generate(model, [1], max_new_tokens=1)).text is None


# The model is left as it was


def test_the_models_modes_and_the_callers_are_left_alone(model: sw.LanguageModel) -> None:
    model.train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []

    def watch(module: torch.nn.Module, arguments: Any) -> None:
        seen.append((module.training, torch.is_grad_enabled()))

    hook = model.norm.register_forward_pre_hook(watch)
    try:
        for _ in generate(model, [1, 2], max_new_tokens=3):
            assert [module.training for module in model.modules()] == modes
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
        assert seen == [(False, False)] * 3
    finally:
        hook.remove()
        model.eval()


def test_only_as_many_tokens_are_read_as_needed(model: sw.LanguageModel) -> None:
    assert list(generate(model, [1], max_new_tokens=0)) == []
    tokens = generate(model, [1], max_new_tokens=10**9, seed=0)
    assert next(tokens).ids.shape == (1,)
    tokens.close()  # type: ignore[attr-defined]


def test_parameters_that_are_not_finite_are_told() -> None:
    broken = build(window=5)
    with torch.no_grad():
        broken.head.weight[3, 3] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        list(generate(broken, [1], max_new_tokens=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"max_new_tokens": 1.5}, r"max_new_tokens=1\.5 .* use an integer"),
        ({"max_new_tokens": True}, "max_new_tokens=True .* use an integer"),
        ({"max_new_tokens": "9"}, "max_new_tokens='9' .* use an integer"),
        ({"temperature": -1.0}, "temperature="),
        ({"temperature": "a"}, "temperature='a'"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": None}, "temperature=None"),
        ({"top_k": 2.0}, r"top_k=2\.0 .* expected an integer of at least 1"),
        ({"top_k": "a"}, "top_k='a'"),
        ({"top_p": "a"}, "top_p='a'"),
        ({"min_p": True}, "min_p=True"),
        ({"repetition_penalty": "a"}, "repetition_penalty='a'"),
        ({"top_k": 0}, "top_k=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed="),
        ({"seed": 1.5}, "seed=1.5"),
        ({"prefill_chunk": 0}, "prefill_chunk=0"),
        ({"prefill_chunk": 2.5}, r"prefill_chunk=2\.5 .* use an integer"),
        ({"stop": 5}, "stop=5 is no text"),
        ({"stop": [5], "tokenizer": BYTES}, "holds 5"),
        ({"stop": "x"}, "stop strings need a tokenizer"),
        ({"stop": [""], "tokenizer": BYTES}, "at least one character"),
        ({"tokenizer": BYTES}, "the tokenizer has 257 ids and the model only 31"),
        ({"document_token": 31}, "document_token=31"),
        ({"document_token": 1.5}, r"document_token=1\.5"),
        ({"prompt": []}, "row 0 of the prompt is empty"),
        ({"prompt": [31]}, "holds the id 31"),
        ({"prompt": [1, 2**70]}, f"row 0 of the prompt holds the id {2**70}"),
        ({"prompt": [[1], [2, -(2**70)]]}, f"row 1 of the prompt holds the id -{2**70}"),
        ({"prompt": [True, 1]}, "row 0 of the prompt holds a bool"),
        ({"prompt": [[1], [1, False]]}, "row 1 of the prompt holds a bool"),
        ({"prompt": [1.5]}, "not a float"),
        ({"prompt": [[1, 2.5]]}, "holds a float"),
        ({"prompt": [[[1]]]}, "holds a list"),
        ({"prompt": torch.tensor([True])}, "must be integers"),
        ({"prompt": torch.tensor(1)}, "must be integers"),
        ({"prompt": np.array([True])}, "must be integers .* got bool"),
        ({"prompt": [np.array(["a"])]}, "must be integers"),
        ({"prompt": torch.tensor([[1, 2]]), "lengths": torch.tensor([1.5])}, "integers, got torch.float32"),
        ({"prompt": torch.tensor([[1, 2]]), "lengths": "a"}, "integers, got 'a'"),
        ({"prompt": "text"}, "no tokenizer is given"),
        ({"state": "state"}, "must be a Reading or a LanguageModelState, not a str"),
    ],
)
def test_mistakes_are_told_at_the_call(model: sw.LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        generate(model, **{"prompt": [1], "max_new_tokens": 1, **options})  # not iterated
    assert "\n" not in str(caught.value)


def test_states_that_do_not_fit_are_refused(model: sw.LanguageModel) -> None:
    reading = read(model, [[1], [2]])
    with pytest.raises(InputError, match="has 1 rows and the state 2"):
        generate(model, [1], state=reading, max_new_tokens=1)
    with pytest.raises(InputError, match="has 1 rows and the state 2"):
        generate(model, [1], state=reading.state, max_new_tokens=1)
    with pytest.raises(InputError, match="row 0 of the prompt is empty"):
        generate(model, state=reading.state, max_new_tokens=1)
    other = build(window=5, vocab_size=32)
    with pytest.raises(InputError, match="it was read by another model"):
        generate(other, state=reading, max_new_tokens=1)


def test_the_quickstart_form(model: sw.LanguageModel) -> None:
    got = [int(token.ids) for token in sw.generate(model, [1, 2], max_new_tokens=4, temperature=0.8, seed=0)]  # type: ignore[operator]
    assert got == ids_of(generate(model, [1, 2], max_new_tokens=4, temperature=0.8, seed=0))[0]
    assert isinstance(sw.generation.read(model, [1]), Reading)


@pytest.mark.cuda
def test_cuda_says_what_the_cpu_says(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "seed": 0, "top_p": 0.95, "repetition_penalty": 1.2}
    prompts = [[1, 2, 3], [4]]
    expected = ids_of(generate(model, prompts, document_token=9, **options))
    moved = build(window=5).cuda()
    assert ids_of(generate(moved, prompts, document_token=9, **options)) == expected
    reading = read(moved, prompts)
    assert all(leaf.is_cuda for leaf in tree_leaves(reading))
