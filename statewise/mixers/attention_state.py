"""The state of attention: the keys and values so far, appended without copying them and without changing old states.

A buffer has spare slots, and doubles when it is full, so that appending costs O(1) per token, amortised. Old states
go on sharing the buffer: each knows which slots are its own, ``start`` to ``end``, and nobody writes into a slot
twice. ``filled`` travels beside the buffer as its water mark and is shared as the buffer is: the first continuation
of a state finds ``filled == end``, claims the slots after it and raises the mark; a second continuation of the same
state finds the mark above its own end and copies. Whatever is done to all leaves of a state alike (clone, deepcopy,
save and load, move, select rows, concatenate) keeps buffer and mark together.

A claim reads the mark and raises it under a lock, in every row, before anything is written: of the threads that
continue one state, one has the slots. A mark above the end of every other state keeps all slots that follow for whoever
raised it, until :func:`release` lowers it to the end of what was written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError


class AttentionState(NamedTuple):
    """The key-value history of each row. The slots from ``start`` to ``end`` are the row's current document.

    keys, values: (batch, capacity, n_kv_heads, d_head); keys have their positions in them already
    start, end:   (batch,) int64, the row's slots
    position:     (batch,) int64, tokens since the row's document began
    filled:       (batch,) int64, slots of the buffer in use by any state that shares it

    A later call may set ``filled``, to no less than ``end``, and write into slots from ``end`` on; nothing else is ever
    written to.
    """

    keys: Tensor
    values: Tensor
    start: Tensor
    end: Tensor
    position: Tensor
    filled: Tensor


class Context(NamedTuple):
    """What the queries of one call may look at.

    keys, values: (batch, n_keys, n_kv_heads, d_head), old ones and the call's own
    n_history:    how many of them are older than the call; (batch,) where the rows differ
    first:        (batch,) time of the row's oldest key, the call's first query being at time 0; None: all are the row's
    """

    keys: Tensor
    values: Tensor
    n_history: int | Tensor
    first: Tensor | None


@dataclass(frozen=True, eq=False)
class SpreadHistory:
    """A history that lies with other processes, each of which holds a piece of every row; see ``train.distributed``.

    It stands in a state's place for one call, and comes back as it is: there is nothing to hand on.

    position:  (batch,) int64, tokens of the row's document that are in earlier pieces
    n_history: how many keys of earlier pieces ``gather`` puts before this piece's, of whatever document
    first:     (batch,) time of the oldest key of the document that goes on; None: all that came before are of it
    gather:    this piece's keys and values (batch, length, n_kv_heads, d_head) -> with those before them
    ring:      q, k, v of this piece -> its outputs, by causal attention to all pieces without a mask; None, or
               where it gives None: gather
    """

    position: Tensor
    n_history: int
    first: Tensor | None
    gather: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ring: Callable[[Tensor, Tensor, Tensor], Tensor | None] | None = None


def append(
    state: AttentionState, keys: Tensor, values: Tensor, *, lengths: Tensor | None = None, window: int | None = None
) -> tuple[Context, AttentionState]:
    """Append in place of the spare slots, no gradients recorded. Rows take the first ``lengths`` of the new tokens.

    With ``lengths`` the slots of the padding stay claimed while the context is looked at; then :func:`release` them.

    Cost: one wait for the device to read the rows' slots; O(length) per call, amortised, and O(length + window)
    memory with a window. ``position`` is advanced by the tokens taken.
    """
    length = keys.shape[1]
    state, starts, ends = claim(state, length, window)
    last = max(ends)
    even = min(ends) == last
    if even:
        state.keys[:, last : last + length] = keys
        state.values[:, last : last + length] = values
    else:  # a row of fewer than `length` tokens leaves its padding in slots that will be free
        rows = torch.arange(len(ends), device=keys.device)[:, None]
        slots = state.end[:, None] + torch.arange(length, device=keys.device)
        state.keys[rows, slots] = keys
        state.values[rows, slots] = values
    end = state.end + (length if lengths is None else lengths)
    lows = starts if window is None else [max(s, e - window + 1) for s, e in zip(starts, ends)]
    low = min(lows)
    seen = slice(low, last + length)
    context = Context(
        state.keys[:, seen],
        state.values[:, seen],
        last - low if even else state.end - low,
        None if even and max(lows) == low else state.start - state.end,
    )
    position = state.position + (length if lengths is None else lengths)
    return context, state._replace(end=end, position=position)


def with_room(state: AttentionState, length: int, window: int | None = None) -> AttentionState:
    """The state itself if ``length`` more tokens may be written after its end, or a copy with room for them.

    Nothing is claimed: the room is for the first to continue the state.
    """
    _, ends, filled = _slots(state)
    return state if _has_room(state, length, ends, filled) else copy_with_room(state, length, window)


def claim(state: AttentionState, length: int, window: int | None = None) -> tuple[AttentionState, list[int], list[int]]:
    """The state itself or a copy, the ``length`` slots after its end the caller's alone; also its starts and ends."""
    with _lock(state.filled):
        starts, ends, filled = _slots(state)
        if _has_room(state, length, ends, filled):
            state.filled.add_(length)
            return state, starts, ends
    state = copy_with_room(state, length, window)
    starts, ends, _ = _slots(state)
    state.filled.add_(length)  # without the lock: nobody else has it
    return state, starts, ends


def release(state: AttentionState) -> None:
    """Gives back what was claimed after the state's end, from which it can then be continued."""
    with _lock(state.filled):
        state.filled.copy_(state.end)


def copy_with_room(state: AttentionState, length: int, window: int | None = None) -> AttentionState:
    """The same history in tensors of its own, without its graph, with room for ``length`` more tokens at least."""
    old_keys, old_values, start = _recent(state, window)
    batch, n_history, n_kv_heads, d_head = old_keys.shape
    needed = n_history + length
    capacity = 1 << (needed - 1).bit_length()
    if window is not None and needed >= window:
        capacity = needed + window  # as many steps until the next copy as the copy has tokens
    keys, values = (old.new_empty(batch, capacity, n_kv_heads, d_head) for old in (old_keys, old_values))
    for buffer, old in ((keys, old_keys), (values, old_values)):
        buffer[:, :n_history] = old.detach()
        buffer[:, n_history:] = 0  # spare slots are saved with the state
    end = torch.full_like(state.end, n_history)
    start = torch.zeros_like(end) if start is None else start
    return AttentionState(keys, values, start, end, state.position.clone(), end.clone())


def concatenate(
    state: AttentionState,
    keys: Tensor,
    values: Tensor,
    *,
    lengths: Tensor | None = None,
    last_start: Tensor | None = None,
    window: int | None = None,
) -> tuple[Context, AttentionState]:
    """Append into new tensors of exactly the size needed: for gradients, new documents, and calls beyond the window.

    last_start: (batch,) time of the last document to begin within the row's tokens, -1 where none does.
    Cost: O(history + length), with a window O(window + length); the state keeps no more than window - 1 tokens.
    """
    old_keys, old_values, start = _recent(state, window)
    n_history, length = old_keys.shape[1], keys.shape[1]
    context_keys, context_values = torch.cat((old_keys, keys), 1), torch.cat((old_values, values), 1)
    first = None if start is None else start - n_history
    context = Context(context_keys, context_values, n_history, first)

    count = torch.full_like(state.end, length) if lengths is None else lengths.to(state.end)
    oldest = torch.full_like(count, -n_history) if first is None else first
    position = state.position + count
    if last_start is not None:
        oldest = torch.where(last_start >= 0, last_start, oldest)
        position = torch.where(last_start >= 0, count - last_start, position)
    n_kept = n_history + length if window is None else min(n_history + length, window - 1)
    start = (n_kept - (count - oldest)).clamp(min=0)
    if lengths is None:
        keys, values = context_keys[:, n_history + length - n_kept :], context_values[:, n_history + length - n_kept :]
        if n_kept < n_history + length:  # a view would keep the whole call alive
            keys, values = keys.clone(), values.clone()
    else:
        slots = (count + n_history - n_kept)[:, None] + torch.arange(n_kept, device=count.device)
        keys, values = _take(context_keys, slots), _take(context_values, slots)
    if lengths is not None or last_start is not None or first is not None:
        keys, values = _blank_before(keys, start), _blank_before(values, start)
    end = torch.full_like(count, n_kept)
    return context, AttentionState(keys, values, start, end, position, end.clone())


def _slots(state: AttentionState) -> tuple[list[int], list[int], list[int]]:
    """start, end and filled of every row, on the host."""
    starts, ends, filled = torch.stack((state.start, state.end, state.filled)).tolist()
    capacity = state.keys.shape[1]
    for row, (start, end) in enumerate(zip(starts, ends)):
        if not 0 <= start <= end <= capacity:
            raise InputError(
                f"the attention state is damaged: row {row} has slots {start} to {end} of {capacity}; "
                "expected 0 <= start <= end <= capacity. Start again from initial_state or an undamaged copy"
            )
    return starts, ends, filled


_LOCKS = [threading.Lock() for _ in range(64)]  # many, since on a GPU a claim waits for the device


def _lock(filled: Tensor) -> threading.Lock:
    """The lock of a mark: the same for all views of its memory."""
    return _LOCKS[(filled.untyped_storage().data_ptr() >> 6) % len(_LOCKS)]


def _renew_locks() -> None:
    """In a forked process the threads that held locks are not there."""
    _LOCKS[:] = [threading.Lock() for _ in _LOCKS]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _has_room(state: AttentionState, length: int, ends: list[int], filled: list[int]) -> bool:
    """Whether ``length`` more tokens may be written after the state's end."""
    return filled == ends and max(ends, default=0) + length <= state.keys.shape[1] and _may_write(state)


def _may_write(state: AttentionState) -> bool:
    """Whether writing into spare slots, and setting the mark, can reach nothing but those slots and the mark."""
    keys, values, filled = state.keys, state.values, state.filled
    if keys.requires_grad or values.requires_grad:  # somebody's leaves, or part of a graph
        return False
    if filled.is_inference() and not torch.is_inference_mode_enabled():  # torch forbids it
        return False
    if len(filled) > 1 and filled.stride(0) == 0:
        return False
    if any(filled.data_ptr() == count.data_ptr() for count in (state.start, state.end, state.position)):
        return False
    for buffer in (keys, values):
        _, capacity, n_kv_heads, d_head = buffer.shape
        if buffer.stride()[1:] != (n_kv_heads * d_head, d_head, 1):
            return False
        if len(filled) > 1 and buffer.stride(0) < capacity * n_kv_heads * d_head:  # expanded: rows lie on each other
            return False
    return True


def _recent(state: AttentionState, window: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The keys and values that the next query can see, rows aligned at their ends, zeros before shorter ones.

    Also where each row starts, (batch,); None if all rows are of one length.
    """
    starts, ends, _ = _slots(state)
    counts = [e - s if window is None else min(e - s, window - 1) for s, e in zip(starts, ends)]
    longest, last = max(counts, default=0), max(ends, default=0)
    if min(ends, default=0) == last:
        keys, values = state.keys[:, last - longest : last], state.values[:, last - longest : last]
    else:
        slots = (state.end - longest)[:, None] + torch.arange(longest, device=state.end.device)
        keys, values = _take(state.keys, slots), _take(state.values, slots)
    if min(counts, default=0) == longest:
        return keys, values, None
    start = longest - (state.end - state.start).clamp(max=longest)
    return _blank_before(keys, start), _blank_before(values, start), start


def _take(buffer: Tensor, slots: Tensor) -> Tensor:
    """buffer[b, slots[b, j]]; slots below 0 give slot 0, whose content means nothing."""
    index = slots.clamp(min=0)[..., None, None].expand(-1, -1, *buffer.shape[2:])
    return buffer.gather(1, index)


def _blank_before(buffer: Tensor, start: Tensor) -> Tensor:
    """Zeros before each row's start, so that what stood there cannot matter: 0 times NaN is not 0."""
    own = torch.arange(buffer.shape[1], device=buffer.device) >= start[:, None]
    return torch.where(own[..., None, None], buffer, 0)
