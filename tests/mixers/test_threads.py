"""One state continued from several threads, and states held while a run goes on: each continuation is as if alone."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from at_once import at_once, changing_often
from decoded_models import build, needs_library, tokens_of
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import statewise as sw
from statewise.decoding import Decoder
from statewise.mixers import attention_state
from statewise.mixers.attention_state import AttentionState, Context, claim, release
from statewise.models.evaluation_mode import evaluation_mode

N_THREADS = 4
MODELS: dict[str, tuple[Any, ...]] = {
    "attention": (sw.AttentionConfig(n_heads=2), sw.AttentionConfig(n_heads=2, positions="learned", max_positions=99)),
    "windowed": (sw.AttentionConfig(n_heads=2, window=6),),
    "convolved": (sw.AttentionConfig(n_heads=2, n_taps=3),),
    "hybrid": (sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=2), sw.Mamba2Config(d_state=4, d_head=4)),
    "time-invariant": (sw.H3Config(d_state=4), sw.AttentionConfig(n_heads=2, window=9), sw.GSSConfig(d_state=4)),
}


def model_of(layers: tuple[Any, ...]) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=61, d_model=8, layers=layers, embedding_std=0.5)
    return config.build().double().eval()


def own(state: Any) -> Any:
    """A copy that shares nothing."""
    return tree_map(torch.clone, state)


def by_model(model: sw.LanguageModel, tokens: Tensor, state: Any, lengths: Tensor | None = None) -> Tensor:
    """The logits of one token after the other; ``lengths`` are those of the first call."""
    out = []
    with torch.no_grad():
        for t in range(tokens.shape[1]):
            logits, state = model(tokens[:, t : t + 1], state, lengths=lengths if t == 0 else None)
            out.append(logits[:, 0])
    return torch.stack(out[1:], 1)


def by_decoder(decoder: Decoder, tokens: Tensor, state: Any) -> Tensor:
    out = []
    for t in range(tokens.shape[1]):
        logits, state = decoder(tokens[:, t], state)
        assert logits is not None
        out.append(logits)
    return torch.stack(out, 1)


@pytest.fixture
def slow_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has read a mark sleeps before it is acted upon, so that all threads read it that may."""
    read = attention_state._slots

    def slowly(state: AttentionState) -> Any:
        found = read(state)
        time.sleep(0.001)
        return found

    monkeypatch.setattr(attention_state, "_slots", slowly)


def differing(n: int, continue_one: Callable[[int, Any], Tensor], fresh: Callable[[], Any], tolerance: float) -> int:
    """In how many of n runs the threads did not all say what each says alone."""
    wanted = [continue_one(i, fresh()) for i in range(N_THREADS)]
    found = 0
    with changing_often():
        for _ in range(n):
            state = fresh()
            got = at_once([partial(continue_one, i, state) for i in range(N_THREADS)])
            found += not all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(got, wanted))
    return found


@pytest.mark.usefixtures("slow_marks")
@pytest.mark.parametrize("layers", MODELS)
def test_a_model_continues_one_state_in_several_threads(layers: str) -> None:
    model, tokens = model_of(MODELS[layers]), tokens_of(4, 12)
    with torch.no_grad():
        _, read = model(tokens[:2, :5], model.initial_state(2))

    def continue_one(i: int, state: Any) -> Tensor:
        lengths = torch.tensor([i % 2, 1]) if i > 1 else None  # rows that wait, and so free slots within a call
        return by_model(model, tokens.roll(i, 0)[:2, 5:9], state, lengths)

    assert differing(10, continue_one, lambda: own(read), 1e-11) == 0


@needs_library
@pytest.mark.usefixtures("slow_marks")
@pytest.mark.parametrize("layers", ["attention", "hybrid"])
def test_a_decoder_continues_one_state_in_several_threads(layers: str) -> None:
    model, tokens = build(layers), tokens_of(4, 12)
    decoder = Decoder(model)
    with torch.no_grad():
        _, read = model(tokens[:2, :5], model.initial_state(2))
    assert differing(10, lambda i, state: by_decoder(decoder, tokens[i : i + 1, 5:8].expand(2, -1), state),
                     lambda: own(read), 0.0) == 0  # fmt: skip


@needs_library
@pytest.mark.usefixtures("slow_marks")
def test_a_model_and_a_decoder_continue_one_state() -> None:
    model, tokens = build("attention"), tokens_of(4, 12)
    decoder = Decoder(model)
    with torch.no_grad():
        _, read = model(tokens[:2, :5], model.initial_state(2))

    def continue_one(i: int, state: Any) -> Tensor:
        here = tokens[i : i + 1, 5:9].expand(2, -1)
        return by_model(model, here, state) if i % 2 else by_decoder(decoder, here, state)

    assert differing(10, continue_one, lambda: own(read), 1e-4) == 0


@pytest.mark.usefixtures("slow_marks")
def test_a_full_history_is_copied_by_several_threads() -> None:
    model, tokens = model_of(MODELS["attention"]), tokens_of(4, 12)
    with torch.no_grad():
        _, read = model(tokens[:2, :8], model.initial_state(2))
    assert read.layers[0].keys.shape[1] == 8
    assert differing(10, lambda i, state: by_model(model, tokens.roll(i, 0)[:2, 8:], model.with_room(state, i)),
                     lambda: own(read), 1e-11) == 0  # fmt: skip


def test_a_prepared_operator_keeps_what_it_computes_from_several_threads() -> None:
    prepared = sw.H3Config(d_state=4).build(4).operators[1].prepare()

    def keep(i: int) -> bool:
        right = True
        for n in range(300):
            right &= prepared._keep(("block", i, n), lambda n=n: n) == n  # type: ignore[misc]
            right &= prepared._keep(("impulse_response", i, n), lambda n=n: -n) == -n  # type: ignore[misc]
        return right

    with changing_often():
        assert all(at_once([partial(keep, i) for i in range(N_THREADS)]))


def test_evaluation_mode_lasts_until_the_last_thread_leaves() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval())
    first, second = evaluation_mode(model), evaluation_mode(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model[0].training
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False]


def history(batch: int, length: int) -> AttentionState:
    state = sw.AttentionConfig(n_heads=1, n_kv_heads=1).build(2).double().initial_state(batch)
    keys, values = torch.randn(2, batch, length, 1, 2, dtype=torch.float64)
    return state.extend(Context(keys, values))[1]


def test_slots_of_padding_are_kept_until_they_have_been_looked_at() -> None:
    """Another row of the same memory cannot put its NaN where the padding of this call lies."""
    state = history(2, 5)
    new = torch.randn(2, 1, 1, 2, dtype=torch.float64)
    _, after = state.extend(Context(new, new, lengths=torch.tensor([0, 1])))
    row = AttentionState(*(leaf[:1] for leaf in state))
    assert claim(row, 1)[0].keys.data_ptr() != state.keys.data_ptr()
    release(after)
    assert after.filled.tolist() == after.end.tolist() == [5, 6]
    assert claim(row, 1)[0].keys.data_ptr() == state.keys.data_ptr()
    assert claim(after, 1)[0].keys.data_ptr() != state.keys.data_ptr()


def test_a_mark_that_is_also_a_count_is_left_alone() -> None:
    state = history(2, 5)
    state = state._replace(filled=state.end)
    new = torch.randn(2, 1, 1, 2, dtype=torch.float64)
    _, after = state.extend(Context(new, new))
    assert state.end.tolist() == [5, 5]
    assert after.end.tolist() == after.filled.tolist() == [6, 6]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    state = history(1, 3)
    for lock in attention_state._LOCKS:
        lock.acquire()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork among threads: that is the case here
            child = os.fork()
        if child == 0:
            release(state)
            os._exit(7)
    finally:
        for lock in attention_state._LOCKS:
            lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@needs_library
@pytest.mark.parametrize("layers", ["mamba", "attention", "h3", "hybrid"])
def test_a_branch_of_a_running_decoder_and_a_state_held_stay(layers: str) -> None:
    decoder, tokens = Decoder(build(layers)), tokens_of(3, 20)
    run, alone = decoder.run(decoder.initial_state(3)), decoder.initial_state(3)
    for t in range(12):
        held = run.state
        kept = own(held)
        _, branch = decoder(tokens[:, t + 1], held)
        lengths = torch.tensor([1, t % 2, 1]) if t % 3 == 0 else None
        logits = run.step(tokens[:, t], lengths=lengths)
        wanted, alone = decoder(tokens[:, t], own(alone), lengths=lengths)
        assert torch.equal(logits, wanted)  # type: ignore[arg-type]
        assert all(torch.equal(a, b) for a, b in zip(visible(held), visible(kept)))
        other = decoder(tokens[:, t + 1], own(kept))[1]
        for state, same in ((branch, other), (held, kept), (run.state, alone)):
            assert torch.equal(by_decoder(decoder, tokens[:, :3], own(state)), by_decoder(decoder, tokens[:, :3], same))
            assert torch.equal(by_decoder(decoder, tokens[:, 3:6], state), by_decoder(decoder, tokens[:, 3:6], same))


def visible(state: Any) -> list[Tensor]:
    """All of a state but the spare slots of its histories, and their marks."""
    out = [state.position]
    for layer in state.layers:
        if isinstance(layer, AttentionState):
            out += [layer.start, layer.end, layer.position]
            for b, (start, end) in enumerate(zip(layer.start.tolist(), layer.end.tolist())):
                out += [layer.keys[b, start:end], layer.values[b, start:end]]
        else:
            out += tree_leaves(layer)
    return out


@needs_library
def test_a_run_whose_state_nobody_holds_goes_on_in_place() -> None:
    decoder, tokens = Decoder(build("hybrid")), tokens_of(2, 30)
    run = decoder.run(decoder.initial_state(2))
    run.step(tokens[:, 0])
    places = [leaf.data_ptr() for leaf in tree_leaves(run.passing_state().layers[0])]
    for t in range(1, 30):
        run.step(tokens[:, t])
        assert [leaf.data_ptr() for leaf in tree_leaves(run.passing_state().layers[0])] == places
    held = run.state  # got once: one step makes a new state, and then it is in place again
    run.step(tokens[:, 0])
    after = [leaf.data_ptr() for leaf in tree_leaves(run.passing_state().layers[0])]
    assert not set(after) & set(places)
    run.step(tokens[:, 1])
    assert [leaf.data_ptr() for leaf in tree_leaves(run.passing_state().layers[0])] == after
    assert [leaf.data_ptr() for leaf in tree_leaves(held.layers[0])] == places


@needs_library
def test_generation_writes_its_state_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the copy that a token gives of its reading stays."""
    model = build("hybrid")
    decoder, places = Decoder(model), []
    step = sw.decoding.Running.step

    def watched(self: Any, *args: Any, **options: Any) -> Tensor | None:
        out = step(self, *args, **options)
        places.append([leaf.data_ptr() for leaf in tree_leaves(self.passing_state().layers[0])])
        return out

    monkeypatch.setattr(sw.decoding.Running, "step", watched)
    options: dict[str, Any] = {"temperature": 0.0, "stop_at_document": False, "weights": decoder}
    stream = sw.generate(model, tokens_of(2, 5), max_new_tokens=30, **options)
    ids, readings = [], []
    for token in stream:
        ids.append(token.ids)
        readings.append(token.reading)
    assert len(places) == 29
    assert all(place == places[0] for place in places)
    for t in (0, 10, 20):
        again = [token.ids for token in sw.generate(model, state=readings[t], max_new_tokens=5, **options)]
        assert torch.equal(torch.stack(again), torch.stack(ids[t : t + 5]))


@needs_library
def test_a_run_that_several_threads_step() -> None:
    """Their steps come one after the other, and whoever looks sees the state between two of them."""
    decoder, tokens = Decoder(build("hybrid")), tokens_of(2, 1)[:, 0]
    alone, n_steps = [decoder.initial_state(2)], 6
    for _ in range(N_THREADS * n_steps):
        alone.append(decoder(tokens, alone[-1])[1])
    with changing_often():
        for _ in range(10):
            run = decoder.run(alone[0])

            def step_and_look(run: Any = run) -> list[Any]:
                seen = []
                for _ in range(n_steps):
                    run.step(tokens)
                    seen += [run.state, copy.copy(run).state]
                return seen

            for seen in at_once([step_and_look] * N_THREADS):
                for state in seen:
                    wanted = alone[int(state.position[0])]
                    assert all(torch.equal(a, b) for a, b in zip(visible(state), visible(wanted)))
            assert int(run.state.position[0]) == N_THREADS * n_steps


@needs_library
def test_a_run_of_inference_mode_is_looked_at_outside() -> None:
    decoder, tokens = Decoder(build("hybrid")), tokens_of(2, 6)
    wanted = by_decoder(decoder, tokens, decoder.initial_state(2))
    with torch.inference_mode():
        run = decoder.run(decoder.initial_state(2))
        first = [run.step(tokens[:, t]) for t in range(2)]
    state = run.state
    rest = [run.step(tokens[:, t]) for t in range(2, 6)]
    assert torch.equal(torch.stack([*first, *rest], 1), wanted)  # type: ignore[list-item]
    assert torch.equal(by_decoder(decoder, tokens[:, 2:], state), wanted[:, 2:])
