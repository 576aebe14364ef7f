"""The laws that every mixer and every operator keeps, as batteries that a test calls with an instance.

They are written against the signature alone, ``y, state = module(x, state, lengths=, starts=)``: each compares two
ways of making the same call, with all their gradients, and never looks inside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from law_documents import check_lengths, check_starts
from law_signals import (
    detached,
    gradients,
    prepared,
    rows,
    same,
    signal,
    some_times,
    states,
    through,
    warm_state,
)
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.operators.masks import NO_MASKS


def check_mixer_laws(
    mixer: Mixer,
    *,
    length: int,
    batch: int = 2,
    atol: float = 1e-10,
    atol_float32: float = 1e-4,
    visible: Callable[[Any], Any] = lambda state: state,
    seed: int = 0,
) -> None:
    """All laws of a causal mixer, in float64, from rest and from a state that has seen rows of several lengths.

    visible: the tensors of a state that mean something, where a state also carries spare room that later calls fill.
    The parameters are drawn anew, with biases that are not zero and signals that are not small.
    """
    torch.manual_seed(seed)
    mixer = prepared(mixer)
    check_structure(mixer, batch)
    check_arguments(mixer)
    check_state_is_data(mixer, length, batch, atol)
    check_none_is_rest(mixer, length, batch, atol)
    check_cuts(mixer, length, batch, atol)
    check_causality(mixer, length, batch, atol)
    check_lengths(mixer, length, atol)
    check_starts(mixer, length, atol)
    check_states_are_not_mutated(mixer, length, batch, visible)
    check_layouts(mixer, length, batch, atol)
    check_float32(mixer, length, batch, atol_float32)


def check_arguments(mixer: Mixer) -> None:
    """A batch of no rows is one, also for one step; whatever is wrong with a call is refused in one line of ours."""
    if isinstance(mixer, Mixer):  # a block is held by the same laws
        both = type(mixer).forward is Mixer.forward and type(mixer).initial_state is Mixer.initial_state
        assert both, "what a call is given is checked by the base class alone"
    x = torch.randn(0, 1, mixer.d_model, dtype=torch.float64)
    assert mixer(x)[0].shape == mixer(x, mixer.initial_state(0))[0].shape == x.shape
    x = torch.randn(2, 3, mixer.d_model, dtype=torch.float64)
    for wrong in wrong_inputs(x):
        refused(lambda x=wrong: mixer(x))
    for wrong in wrong_lengths(2, 3):
        refused(lambda lengths=wrong: mixer(x, lengths=lengths))
    for wrong in wrong_starts(2, 3):
        refused(lambda starts=wrong: mixer(x, starts=starts))
    refused(lambda: mixer(x, masks="no"), "needs Masks as masks, got str")
    refused(lambda: mixer(x, lengths=torch.tensor([1, 2]), masks=NO_MASKS), "got both")
    for state in (mixer.initial_state(2), detached(warm_state(mixer, 2))):
        for wrong in wrong_states(state):
            refused(lambda state=wrong: mixer(x, state))
    for batch in (-1, 2.5, True, "2"):
        refused(lambda batch=batch: mixer.initial_state(batch), "a state needs batch as an integer of at least 0")
    for dtype in (torch.int64, torch.bool, torch.complex64):
        refused(lambda dtype=dtype: mixer.initial_state(2, dtype=dtype), "a state needs a floating-point dtype")


def refused(call: Callable[[], Any], match: str | None = None) -> None:
    """InputError in one line that somebody reads to its end."""
    with pytest.raises(InputError, match=match) as error:
        call()
    message = str(error.value)
    assert "\n" not in message, message
    assert len(message) <= 400, message


def wrong_inputs(x: Tensor) -> Iterator[Any]:
    """Of a mixer in float64 that reads x (batch, length, d_model)."""
    yield from (None, x.cpu().numpy(), x.tolist())
    yield from (x[0], x[0, 0, 0], x[None], x[..., :-1], torch.cat([x, x], -1))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128):
        yield x.to(dtype)
    yield from (x.to("meta"), x.to_sparse())


def wrong_lengths(batch: int, length: int) -> Iterator[Any]:
    right = torch.full((batch,), length)
    yield from ([length] * batch, length, right.cpu().numpy())
    yield from (m for m in (right[:1], right[0], right[:, None], right.repeat(2)) if m.shape != right.shape)
    for dtype in (torch.float32, torch.bool, torch.complex64):
        yield right.to(dtype)
    yield from (right + 1, right - length - 1, right.to("meta"), right.to_sparse())


def wrong_starts(batch: int, length: int) -> Iterator[Any]:
    right = torch.zeros(batch, length, dtype=torch.bool)
    yield from (right.tolist(), True, right.cpu().numpy())
    others = (right[0], right[:1], right[:, :1], right[..., None], right.mT)
    yield from (m for m in others if m.shape != right.shape)
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.complex64):
        yield right.to(dtype)
    yield from (right.to("meta"), right.to_sparse())


class AnotherState(NamedTuple):
    """Of no mixer."""

    h: Tensor


def wrong_states(state: Any) -> Iterator[Any]:
    """A right state, changed in one place each time; nothing may be broadcast or cut to fit."""
    leaves, spec = pytree.tree_flatten(state)
    yield from (leaves, tuple(leaves), tuple(state), dict(enumerate(leaves)), leaves[0], torch.zeros(2), "state", True)
    yield from (AnotherState(leaves[0]), state._replace(**{state._fields[0]: AnotherState(leaves[0])}))
    yield state._replace(**{state._fields[0]: None})
    batch = len(leaves[0])
    yield from (rows(state, [0] * n) for n in (1, batch + 1) if n != batch)
    for i, leaf in enumerate(leaves):
        shapes = [leaf[0], leaf[:1], leaf[:0], leaf[None], leaf[..., None]]
        shapes += [torch.cat([leaf, leaf], axis) for axis in range(leaf.ndim)]
        changed: list[Any] = [other for other in shapes if other.shape != leaf.shape]
        changed += [None, leaf.tolist(), leaf.to("meta"), leaf.to_sparse()]
        count = not leaf.is_floating_point()
        dtypes = (
            (torch.float32, torch.int32, torch.bool)
            if count
            else (torch.int64, torch.bool, torch.complex128, torch.bfloat16)
        )
        changed += [leaf.to(dtype) for dtype in dtypes]
        for other in changed:
            yield pytree.tree_unflatten([*leaves[:i], other, *leaves[i + 1 :]], spec)


def check_structure(mixer: Mixer, batch: int) -> None:
    """A state is a pytree of real tensors, batch first, float32 or wider; an empty call changes nothing."""
    for module in (mixer, copy.deepcopy(mixer).to(torch.bfloat16)):
        for leaf in pytree.tree_leaves(module.initial_state(batch)):
            assert isinstance(leaf, Tensor)
            assert leaf.shape[0] == batch
            assert leaf.dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool), leaf.dtype
    empty, probe = signal(mixer, batch, 0), signal(mixer, batch, 5)
    y, none = mixer(empty)
    assert y.shape == empty.shape
    assert none is None
    for state in states(mixer, batch):
        assert isinstance(state, tuple)
        y, after = mixer(empty, state)
        assert y.shape == empty.shape
        same(mixer(probe, after)[0], mixer(probe, state)[0], 1e-12, "an empty call changes the state")


def check_state_is_data(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """A state that was copied, or whose rows were selected, repeated and joined, continues as the original does."""
    probe = signal(mixer, batch, 6)
    with torch.no_grad():
        _, state = mixer(signal(mixer, batch, length), mixer.initial_state(batch))
        expected = through(mixer, probe.split(2, 1), state)
        for name, copied in (
            ("clone", pytree.tree_map(torch.clone, state)),
            ("deepcopy", copy.deepcopy(state)),
            ("floats alone copied", pytree.tree_map(lambda x: x.clone() if x.is_floating_point() else x, state)),
        ):
            same(through(mixer, probe.split(2, 1), copied), expected, atol, name)
        index = [batch - 1, 0, batch - 1]
        same(through(mixer, probe[index].split(2, 1), rows(state, index)), expected[index], atol, "rows selected")
        parts = [pytree.tree_map(lambda x, b=b: x[b : b + 1], state) for b in range(batch)]
        joined = pytree.tree_map(lambda *leaves: torch.cat(leaves), *parts)
        same(through(mixer, probe.split(2, 1), joined), expected, atol, "rows joined")
        for b, part in enumerate(parts):
            same(through(mixer, probe[b : b + 1].split(2, 1), part), expected[b : b + 1], atol, "a row as a view")


def check_none_is_rest(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """None in, None out, and the same as starting from the initial state; gradients too."""
    x = signal(mixer, batch, length).requires_grad_()
    y, none = mixer(x)
    assert none is None
    expected, state = mixer(x, mixer.initial_state(batch))
    assert state is not None
    same(y, expected, atol, "state=None")
    same(gradients(mixer, y, x), gradients(mixer, expected, x), atol, "gradients with state=None")


def check_cuts(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """One call = any two calls = step by step, in outputs, final state and gradients, also of the incoming state.

    Final states are compared through what follows from them, a probe, since they may differ in spare room.
    """
    x, probe = signal(mixer, batch, length).requires_grad_(), signal(mixer, batch, 3).requires_grad_()
    for is_warm, state in enumerate(states(mixer, batch)):
        whole = through(mixer, (x, probe), state)
        expected = gradients(mixer, whole, (x, probe, state))
        times = some_times(length)[:: 1 if is_warm else 3]
        cuts = [(f"cut at {t}", (x[:, :t], x[:, t:], probe)) for t in times]
        cuts.append(("step by step", (*x.split(1, 1), *probe.split(1, 1))))
        cuts.append(("in pieces of 3", (*x.split(3, 1), probe)))
        for name, pieces in cuts:
            y = through(mixer, pieces, state)
            same(y, whole, atol, name)
            same(gradients(mixer, y, (x, probe, state)), expected, atol, f"gradients, {name}")
            with torch.no_grad():  # where nothing is recorded a mixer may work in place
                same(through(mixer, pieces, detached(state)), whole, atol, f"{name}, without gradients")


def check_causality(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """What comes later changes nothing before it."""
    x = signal(mixer, batch, length)
    for state in (None, *states(mixer, batch)):
        expected, _ = mixer(x, state)
        for t in some_times(length)[:: max(1, len(some_times(length)) // 8)]:
            changed = torch.cat((x[:, :t], 3 * signal(mixer, batch, length - t)), 1)
            same(mixer(changed, state)[0][:, :t], expected[:, :t], atol, f"outputs before a change at {t}")


def check_states_are_not_mutated(mixer: Mixer, length: int, batch: int, visible: Callable[[Any], Any]) -> None:
    """Whoever holds a state may go on from it, as often as they like, whatever others made of it meanwhile."""
    x, other = signal(mixer, batch, length), signal(mixer, batch, length)
    ragged = torch.tensor([max(0, length - b) for b in range(batch)])
    starts = torch.zeros(batch, length, dtype=torch.bool)
    starts[0, length // 2] = True

    def forks(state: Any) -> list[Tensor]:
        ys = [through(mixer, x.split(1, 1), state), through(mixer, other.split(2, 1), state)]
        ys += [mixer(x, state)[0], mixer(x, state, starts=starts)[0]]
        return [*ys, mixer(x, state, lengths=ragged)[0][:, : max(0, length - batch + 1)]]

    with torch.no_grad():
        held = [detached(warm_state(mixer, batch)), mixer.initial_state(batch)]
        for piece in signal(mixer, batch, 9).split(1, 1):  # a chain of states, each made from the one before
            held.append(mixer(piece, held[-1])[1])
        held.append(mixer(x, held[0], lengths=ragged)[1])
        before = copy.deepcopy([visible(state) for state in held])
        some = [held[i] for i in (0, 1, 2, 6, 10, 11)]  # from rest, warm, of the chain, and of rows of two lengths
        copies = [copy.deepcopy(state) for state in some]
        first = [forks(state) for state in reversed(some)]  # old and new states by turns
        for state, kept in zip(held, before):
            same(visible(state), kept, 0.0, "a state after others went on from it")
        again = [forks(state) for state in reversed(some)]
        same(again, first, 1e-12, "a second continuation")
        same([forks(state) for state in reversed(copies)], first, 1e-12, "the continuation of a copy")
        # Three of one state, one of them with padding: the first is asked before and after the others.
        for state in (some[0], *some[-2:]) if length > 1 else ():
            branch = mixer(x[:, :1], state)[1]
            asked = mixer(other[:, :2], branch)[0]
            mixer(other[:, :2], state, lengths=torch.tensor([2 - b % 2 for b in range(batch)]))
            mixer(other[:, :1], state)
            same(mixer(other[:, :2], branch)[0], asked, 1e-12, "a branch after others of its state")
        # Two continuations side by side, step by step.
        for state in (some[0], *some[-2:]):
            a = b = state
            ys: tuple[list[Tensor], list[Tensor]] = ([], [])
            for piece_a, piece_b in zip(x.split(1, 1), other.split(1, 1)):
                y_a, a = mixer(piece_a, a)
                y_b, b = mixer(piece_b, b)
                ys[0].append(y_a)
                ys[1].append(y_b)
            same(torch.cat(ys[0], 1), mixer(x, copy.deepcopy(state))[0], 1e-9, "the first of two continuations")
            same(torch.cat(ys[1], 1), mixer(other, copy.deepcopy(state))[0], 1e-9, "the second of two continuations")


def check_layouts(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """Strided and expanded inputs and states, which must not be written to, give what contiguous ones give."""
    x = signal(mixer, batch, length)
    y = mixer(x)[0]
    same(mixer(x.transpose(0, 1).contiguous().transpose(0, 1))[0], y, atol, "length-major input")
    same(mixer(x.repeat_interleave(2, 1)[:, ::2])[0], y, atol, "every other step of an input")
    same(mixer(torch.stack((x, -x), -1)[..., 0])[0], y, atol, "input with strided features")
    same(mixer(x[:1].expand(batch, -1, -1))[0], y[:1].expand(batch, -1, -1), atol, "expanded input")
    with torch.no_grad():
        _, one = mixer(signal(mixer, 1, length), mixer.initial_state(1))
        expanded = pytree.tree_map(lambda leaf: leaf.expand(batch, *leaf.shape[1:]), one)
        copied = pytree.tree_map(lambda leaf: leaf.repeat(batch, *(1 for _ in leaf.shape[1:])), one)
        kept = copy.deepcopy(one)
        expected = through(mixer, x.split(1, 1), copied)
        same(through(mixer, x.split(1, 1), expanded), expected, atol, "expanded state")
        same(through(mixer, x.split(2, 1), expanded), expected, atol, "expanded state, again")
        same(mixer(x[:1], one)[0], mixer(x[:1], kept)[0], atol, "the state that was expanded")
        wide = pytree.tree_map(lambda leaf: leaf.repeat_interleave(2, 0)[::2], copied)
        same(through(mixer, x.split(1, 1), wide), expected, atol, "every other row of a state")


def check_float32(mixer: Mixer, length: int, batch: int, atol: float) -> None:
    """float32 agrees with float64, in one call and through states."""
    x = signal(mixer, batch, length)
    single = copy.deepcopy(mixer).float()
    with torch.no_grad():
        expected = mixer(x)[0]
        scale = expected.abs().max().item()
        whole, none = single(x.float())
        steps = through(single, x.float().split(5, 1), single.initial_state(batch))
        assert none is None
    for name, y in (("float32", whole), ("float32, in pieces", steps)):
        assert y.dtype == torch.float32
        torch.testing.assert_close(
            y.double(), expected, atol=atol * scale, rtol=0.0, msg=lambda message, name=name: f"{name}: {message}"
        )
