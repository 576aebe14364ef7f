"""The state of attention: a history of keys and values that continuations share, copy, save and join."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from attention_layers import build, decode
from law_signals import same, through, tracked
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.errors import InputError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.attention_state import AttentionState, Context
from statewise.operators.state_shape import StandIn


def test_window_bounds_the_state() -> None:
    mixer = AttentionConfig(n_heads=2, n_kv_heads=1, window=64).build(8)
    x = torch.randn(1, 5_000, 8)
    state, buffers, largest = mixer.initial_state(1), 0, 0
    outputs = []
    with torch.no_grad():
        for piece in x.split(1, 1):
            pointer = state.keys.data_ptr()
            y, state = mixer(piece, state)
            outputs.append(y)
            buffers += state.keys.data_ptr() != pointer
            largest = max(largest, state.keys.untyped_storage().nbytes())
        same(torch.cat(outputs, 1), mixer(x)[0], 1e-6, "5,000 steps")
    assert state.position.item() == 5_000
    assert state.keys.shape[1] <= 2 * 64
    assert largest <= 2 * 64 * 4 * 4  # slots of 4 features of 4 bytes
    assert buffers <= 5_000 / 64 + 8  # a copy of 63 tokens once in 64 steps
    with torch.no_grad():  # one long call leaves no more, and neither do calls shorter than the window
        _, after = mixer(x, state)
        assert after.keys.untyped_storage().nbytes() <= 2 * 64 * 4 * 4
        for piece in x.split(50, 1):
            _, after = mixer(piece, after)
            assert after.keys.shape[1] <= 2 * 64 + 50
    _, after = mixer(x[:, :100], after)  # gradients are recorded
    _, after = mixer(x[:, :100], after)
    assert after.keys.shape[1] == 63


def test_appending_copies_rarely() -> None:
    mixer = AttentionConfig(n_heads=1).build(4)
    x = torch.randn(2, 1_000, 4)
    for lengths in (None, [torch.tensor([1, int(t % 3 != 0)]) for t in range(1_000)]):  # even rows, uneven rows
        state, copies = mixer.initial_state(2), 0
        with torch.no_grad():
            for t, piece in enumerate(x.split(1, 1)):
                pointer = state.keys.data_ptr()
                _, state = mixer(piece, state, lengths=None if lengths is None else lengths[t])
                copies += state.keys.data_ptr() != pointer
        assert copies == 11  # at 1, 2, 4, ..., 1,024 slots
        assert state.keys.shape[1] == 1_024
    assert state.position.tolist() == (state.end - state.start).tolist() == [1_000, 666]


@pytest.mark.parametrize("n_taps", [None, 3])
def test_with_room_a_known_length_is_read_without_a_copy(n_taps: int | None) -> None:
    mixer = AttentionConfig(n_heads=1, n_taps=n_taps).build(4)
    x = torch.randn(2, 300, 4)
    lengths = torch.tensor([1, 0])

    def keys(state: Any) -> torch.Tensor:
        return (state if n_taps is None else state.history).keys

    with torch.no_grad():
        expected, state = mixer(x, mixer.initial_state(2))
        roomy = mixer.with_room(mixer.initial_state(2), 300)
        pointer, outputs = keys(roomy).data_ptr(), []
        for piece in x.split(7, 1):
            y, roomy = mixer(piece, roomy)
            outputs.append(y)
            assert keys(roomy).data_ptr() == pointer
        same(torch.cat(outputs, 1), expected, 1e-6, "with room")

        _, uneven = mixer(x[:, :1], state, lengths=lengths)  # and rows of different lengths, whose room is full
        wide = mixer.with_room(uneven, 1_000)
        assert keys(wide).shape[1] == 2_048
        assert keys(mixer.with_room(wide, 1_000)) is keys(wide)
        same(mixer(x, wide)[0], mixer(x, uneven)[0], 1e-6, "uneven rows")
    assert keys(mixer.with_room(mixer.initial_state(0), 3)).shape == (0, 4, 1, 4)
    windowed = AttentionConfig(n_heads=1, window=5).build(4)
    rest = windowed.initial_state(2)
    assert windowed.with_room(rest, 10**12) is rest  # its state is bounded


def test_with_room_refuses_what_is_no_state_of_the_model() -> None:
    layers = (AttentionConfig(n_heads=1), AttentionConfig(n_heads=1, n_taps=2), sw.MambaConfig())
    plain, convolved, mamba = (sw.LanguageModelConfig(vocab_size=5, d_model=4, layers=(one,)).build() for one in layers)
    state = plain.initial_state(1)
    for model, given, length, message in (
        (plain, state, -1, "length=-1 is out of range"),
        (plain, state, 1.5, "length=1.5 is out of range"),
        (plain, state.layers[0], 1, "must be a LanguageModelState or None, got AttentionState"),
        (plain, state._replace(layers=()), 1, "state is for 0 layers; this model has 1"),
        (convolved, state, 1, "needs state of type ConvolvedAttentionState, got AttentionState"),
        (plain, convolved.initial_state(1), 1, "needs state of type AttentionState, got ConvolvedAttentionState"),
    ):
        with pytest.raises(InputError, match=message):
            model.with_room(given, length)
    rest = mamba.initial_state(1)
    assert mamba.with_room(rest, 10**12).layers[0] is rest.layers[0]


class Elsewhere(StandIn):
    """A history of our own: the keys and values of each call in a tuple."""

    def __init__(self, *calls: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.calls = calls
        self.position = torch.full((2,), sum(keys.shape[1] for keys, _ in calls))

    def extend(self, own: Context) -> tuple[Context, Elsewhere]:
        after = Elsewhere(*self.calls, (own.keys, own.values))
        keys, values = (torch.cat(parts, 1) for parts in zip(*after.calls))
        return own._replace(keys=keys, values=values, n_history=keys.shape[1] - own.keys.shape[1]), after

    def attend(self, q: torch.Tensor, context: Context, dropout: Any = None) -> torch.Tensor:
        return context.attend(q, dropout)


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"n_taps": 3}])
def test_a_history_needs_to_extend_and_attend_and_nothing_else(options: dict[str, Any]) -> None:
    mixer = build(n_heads=2, **options)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    state: Any = Elsewhere()
    if mixer.convolution is not None:
        state = mixer.initial_state(2)._replace(history=state)
    same(through(mixer, x.split((5, 1, 5), 1), state), mixer(x)[0], 1e-12, "a history kept elsewhere")


def test_the_first_continuation_shares_the_buffer_and_the_second_copies() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    _, old = decode(mixer, x, mixer.initial_state(1))
    assert old.keys.shape[1] == 8
    (_, first), (_, second) = decode(mixer, x[:, :1], old), decode(mixer, x[:, 1:2], old)
    assert first.keys.data_ptr() == old.keys.data_ptr()
    assert second.keys.data_ptr() != old.keys.data_ptr()
    assert old.end.item() == 5
    assert first.filled is old.filled
    _, third = decode(mixer, x[:, 2:3], first)  # the first goes on as if there were no second
    assert third.keys.data_ptr() == old.keys.data_ptr()
    expected = mixer(torch.cat((x, x[:, 1:2], x), 1))[0][:, 6:]
    same(decode(mixer, x, second)[0], expected, 1e-12, "the second")


def test_rows_viewed_out_of_a_state_share_it_safely() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    _, whole = decode(mixer, x, mixer.initial_state(2))
    row = AttentionState(*(leaf[1:] for leaf in whole))
    expected = mixer(torch.cat((x, x), 1))[0][:, 5:]
    changed = mixer(torch.cat((x, -x), 1))[0][:, 5:]
    same(decode(mixer, -x[1:], row)[0], changed[1:], 1e-12, "one row")
    same(decode(mixer, x, whole)[0], expected, 1e-12, "all rows, after one of them was continued")
    same(decode(mixer, -x[1:], row)[0], changed[1:], 1e-12, "one row, again")


def test_heads_that_lie_on_each_other_are_not_written_to() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    _, state = decode(mixer, x[:, :3], mixer.initial_state(1))
    shared = {"keys": state.keys[:, :, :1].expand_as(state.keys), "filled": state.filled.clone()}
    expected = mixer(x, state._replace(**{name: leaf.clone() for name, leaf in shared.items()}))[0]
    same(decode(mixer, x, state._replace(**shared))[0], expected, 1e-12, "keys that the heads share")


def test_states_of_different_prompts_join() -> None:
    mixer = build(n_heads=2)
    x, prompts = torch.randn(3, 4, 8, dtype=torch.float64), [torch.randn(1, n, 8, dtype=torch.float64) for n in (5, 8)]
    made = [decode(mixer, prompt, mixer.initial_state(1))[1] for prompt in prompts]
    assert {state.keys.shape[1] for state in made} == {8}
    joined = pytree.tree_map(lambda *leaves: torch.cat(leaves), *made, made[0])
    expected = [mixer(torch.cat((prompts[p], x[b : b + 1]), 1))[0][:, -4:] for b, p in enumerate((0, 1, 0))]
    same(decode(mixer, x, joined)[0], torch.cat(expected), 1e-12, "joined")


def test_states_survive_saving_together() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    _, old = decode(mixer, x[:, :5], mixer.initial_state(1))
    _, new = decode(mixer, x[:, 5:], old)
    file = io.BytesIO()
    torch.save([tuple(old), tuple(new)], file)  # they share a buffer, in the file too
    file.seek(0)
    loaded = [AttentionState(*leaves) for leaves in torch.load(file)]
    for held in (loaded, copy.deepcopy([old, new])):
        for state, prefix in zip(held, (x[:, :5], x)):
            expected = mixer(torch.cat((prefix, -x), 1))[0][:, prefix.shape[1] :]
            same(decode(mixer, -x, state)[0], expected, 1e-12, "a saved state")


def test_inference_mode_and_ordinary_mode_mix() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    expected = mixer(x)[0]
    with torch.inference_mode():
        y, state = mixer(x[:, :5], mixer.initial_state(1))
        again, state = mixer(x[:, 5:6], state)
    same(torch.cat((y, again, decode(mixer, x[:, 6:], state)[0]), 1), expected, 1e-12, "made in inference mode")
    _, state = decode(mixer, x[:, :5], mixer.initial_state(1))
    with torch.inference_mode():
        y, _ = mixer(x[:, 5:], state)
    same(y, expected[:, 5:], 1e-12, "continued in inference mode")


def test_a_state_in_a_graph_is_not_written_to() -> None:
    mixer = build(n_heads=2)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    state = tracked(decode(mixer, x, mixer.initial_state(1))[1])
    assert state.keys.shape[1] > 5
    y, _ = mixer(x, state)
    kept = state.keys.detach().clone()
    decode(mixer, -x[:, :1], state)
    assert torch.equal(state.keys, kept)
    y.sum().backward()


def test_spare_room_of_a_state_is_zero() -> None:
    """What is saved with a state is the row's own, neither old memory nor an earlier document."""
    mixer = build(n_heads=2)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    starts = torch.zeros(2, 5, dtype=torch.bool)
    starts[0, 3] = True
    with torch.no_grad():
        _, made = mixer(x, mixer.initial_state(2), starts=starts)
        _, uneven = mixer(x, mixer.initial_state(2), lengths=torch.tensor([2, 5]))
        _, uneven_once_more = mixer(x, made, starts=starts, lengths=torch.tensor([4, 1]))
        _, after = mixer(x[:, :1], made)
    assert after.start.tolist() == [3, 0]
    for state in (made, after, uneven_once_more):
        for b in range(2):
            outside = torch.ones(state.keys.shape[1], dtype=torch.bool)
            outside[int(state.start[b]) : int(state.end[b])] = False
            assert not state.keys[b, outside].any()
            assert not state.values[b, outside].any()
    assert uneven.end.tolist() == [2, 5]


@pytest.mark.parametrize("expanded", [("keys",), ("values",), ("filled",)])
def test_leaves_that_lie_on_each_other_are_not_written_to(expanded: tuple[str, ...]) -> None:
    mixer = build(n_heads=2)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    _, one = decode(mixer, x[:1], mixer.initial_state(1))
    leaves = {
        name: leaf.expand(3, *leaf.shape[1:]) if name in expanded else leaf.repeat_interleave(3, 0)
        for name, leaf in one._asdict().items()
    }
    expected = mixer(torch.cat((x[:1].expand(3, -1, -1), x), 1))[0][:, 5:]
    same(decode(mixer, x, AttentionState(**leaves))[0], expected, 1e-12, "one expanded leaf")


def test_continuing_a_document_that_broke_does_not_break_the_next() -> None:
    """NaN in a row's old document stays there, also when the rows are of different lengths."""
    mixer = build(n_heads=2)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    x[0, 1] = torch.nan
    starts = torch.tensor([[True], [False]])
    with torch.no_grad():
        _, state = mixer(x, mixer.initial_state(2))
        clean = torch.randn(2, 3, 8, dtype=torch.float64)
        y, state = mixer(clean[:, :1], state, starts=starts)
        rest, state = decode(mixer, clean[:, 1:], state)
    same(torch.cat((y, rest), 1)[0], mixer(clean[:1])[0][0], 1e-12, "the next document")


def test_the_state_is_float32_or_wider() -> None:
    mixer = AttentionConfig(n_heads=2, n_kv_heads=1, window=5).build(8).bfloat16()
    x = torch.randn(1, 12, 8).bfloat16()
    y, state = mixer(x[:, :7], mixer.initial_state(1))
    assert y.dtype == torch.bfloat16
    assert state.keys.dtype == state.values.dtype == torch.float32
    rest, state = decode(mixer, x[:, 7:], state)
    assert state.keys.dtype == torch.float32
    torch.testing.assert_close(torch.cat((y, rest), 1), mixer(x)[0], atol=2e-4, rtol=0.05)
    assert mixer.initial_state(1, dtype=torch.bfloat16).keys.dtype == torch.float32
    assert mixer.initial_state(1, dtype=torch.float64).keys.dtype == torch.float64
    assert mixer.initial_state(1, device="meta").keys.device.type == "meta"


def test_a_call_of_no_steps_looks_at_its_state_too() -> None:
    """Found by make fuzz: values of another shape than the keys were handed on."""
    mixer = AttentionConfig(n_heads=2).build(8)
    state = mixer.initial_state(3)
    damaged = state._replace(values=state.values.new_zeros(3, 5, 2, 4))
    with pytest.raises(InputError, match="keys and values of one shape"):
        mixer(torch.zeros(3, 0, 8), damaged)
