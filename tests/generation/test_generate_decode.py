"""Generation: step by step equals at once, ragged equals single; seeds and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from written_models import build, ids_of, with_readings

import statewise as sw
from statewise.decoding import why_not
from statewise.generation import generate, read


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


@pytest.mark.cuda
def test_cuda_says_what_the_cpu_says(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "seed": 0, "top_p": 0.95, "repetition_penalty": 1.2}
    prompts = [[1, 2, 3], [4]]
    expected = ids_of(generate(model, prompts, document_token=9, **options))
    moved = build(window=5).cuda()
    assert ids_of(generate(moved, prompts, document_token=9, **options)) == expected
    reading = read(moved, prompts)
    assert all(leaf.is_cuda for leaf in tree_leaves(reading))
