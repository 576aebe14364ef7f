"""What attention looks back at: the contract of a history, and the state that keeps one.

The state holds the keys and values so far, which are appended to without copying them and without changing old states.
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
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.attention import Later, remember
from statewise.mixers.causal_attention import attend

Dropout = Callable[[Tensor], Tensor]  # of the weights (batch, n_heads, queries, keys)


class Context(NamedTuple):
    """What the queries of one call may look at: its own keys and values, and before them what a history has put there.

    keys, values: (batch, n_keys, n_kv_heads, d_head)
    lengths:   (batch,) how many of the call's own each row has; None: all
    began:     (batch, length) time at which each query's document began, the call's first query being at time 0, or
               -1 if before the call; None: no document begins in it
    window:    how many keys a query sees at most, its own being the last; None: all
    n_history: how many keys are older than the call; (batch,) where the rows differ
    oldest:    (batch,) time of the row's oldest key; None: all are the row's
    later:     in exact mode, what joins the gradients of keys and values with those of later calls
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor | None = None
    began: Tensor | None = None
    window: int | None = None
    n_history: int | Tensor = 0
    oldest: Tensor | None = None
    later: Later | None = None

    def attend(self, q: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Causal softmax attention of q (batch, length, n_heads, d_head) to what each query may see."""
        first = None if self.oldest is None else self.oldest[:, None].expand(-1, q.shape[1])
        if self.began is not None:
            first = torch.where(self.began >= 0, self.began, -self.n_history if first is None else first)
        return attend(
            *(q, self.keys, self.values),
            n_history=self.n_history,
            first=first,
            window=self.window,
            dropout=dropout,
            later=self.later,
        )


class History(Protocol):
    """The keys and values before a call, wherever they are."""

    @property
    def position(self) -> Tensor:
        """(batch,) int64, tokens since the row's document began."""

    def extend(self, own: Context) -> tuple[Context, Any]:
        """What the queries of a call may look at, of which ``own`` is the call's part, and the history behind it."""

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        """``context.attend``, asked once of the history behind the call whose context it is."""


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

    def extend(self, own: Context) -> tuple[Context, AttentionState]:
        """In the state's dtype, so that nothing old is cast. The host waits for the device."""
        state, length, lengths, began = self, own.keys.shape[1], own.lengths, own.began
        if lengths is not None and int(lengths.min()) == length:
            lengths = None
        if began is not None and not bool((began >= 0).any()):
            began = None
        keys, values = own.keys.to(self.keys.dtype), own.values.to(self.values.dtype)
        own = own._replace(keys=keys, values=values, lengths=lengths, began=began)
        if began is not None:  # what a row drops at once is dropped from its buffer too
            state = self._replace(start=torch.where(began[:, 0] >= 0, self.end, self.start))
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (keys, self.keys, self.values))
        if recorded or began is not None or (own.window is not None and length >= own.window):
            return concatenate(state, own)
        return append(state, own)

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        y = context.attend(q.to(self.keys.dtype), dropout)
        if context.lengths is not None:
            release(self)
        return y


def append(state: AttentionState, own: Context) -> tuple[Context, AttentionState]:
    """Append in place of the spare slots, no gradients recorded, no document beginning.

    With ``lengths`` the slots of the padding stay claimed while the context is looked at; then :func:`release` them.

    Cost: one wait for the device to read the rows' slots; O(length) per call, amortised, and O(length + window)
    memory with a window.
    """
    length, window = own.keys.shape[1], own.window
    state, starts, ends = claim(state, length, window)
    last = max(ends)
    even = min(ends) == last
    if even:
        state.keys[:, last : last + length] = own.keys
        state.values[:, last : last + length] = own.values
    else:  # a row of fewer than `length` tokens leaves its padding in slots that will be free
        rows = torch.arange(len(ends), device=own.keys.device)[:, None]
        slots = state.end[:, None] + torch.arange(length, device=own.keys.device)
        state.keys[rows, slots] = own.keys
        state.values[rows, slots] = own.values
    lows = starts if window is None else [max(s, e - window + 1) for s, e in zip(starts, ends)]
    low = min(lows)
    seen = slice(low, last + length)
    context = own._replace(
        keys=state.keys[:, seen],
        values=state.values[:, seen],
        n_history=last - low if even else state.end - low,
        oldest=None if even and max(lows) == low else state.start - state.end,
    )
    count = length if own.lengths is None else own.lengths
    return context, state._replace(end=state.end + count, position=state.position + count)


def with_room(state: AttentionState, length: int) -> AttentionState:
    """The state itself if ``length`` more tokens may be written after its end, or a copy with room for them.

    Nothing is claimed: the room is for the first to continue the state.
    """
    _, ends, filled = _slots(state)
    return state if _has_room(state, length, ends, filled) else copy_with_room(state, length)


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
    """Frees what was claimed after the state's end, so that it can be continued from there."""
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


def concatenate(state: AttentionState, own: Context) -> tuple[Context, AttentionState]:
    """Append into new tensors of exactly the size needed: for gradients, new documents, and calls beyond the window.

    Cost: O(history + length), with a window O(window + length); the state keeps no more than window - 1 tokens.
    """
    old_keys, old_values, start = _recent(state, own.window)
    n_history, length, lengths, window = old_keys.shape[1], own.keys.shape[1], own.lengths, own.window
    all_keys, all_values = torch.cat((old_keys, own.keys), 1), torch.cat((old_values, own.values), 1)
    oldest = None if start is None else start - n_history
    context = own._replace(keys=all_keys, values=all_values, n_history=n_history, oldest=oldest)
    if is_exact() and torch.is_grad_enabled():
        keys, values, all_keys, all_values, later = remember(all_keys, all_values)
        context = context._replace(keys=keys, values=values, later=later)

    count = torch.full_like(state.end, length) if lengths is None else lengths
    first = torch.full_like(count, -n_history) if oldest is None else oldest
    position = state.position + count
    if own.began is not None:
        last = own.began[:, -1]  # no document begins in the padding
        first = torch.where(last >= 0, last, first)
        position = torch.where(last >= 0, count - last, position)
    n_kept = n_history + length if window is None else min(n_history + length, window - 1)
    start = (n_kept - (count - first)).clamp(min=0)
    if lengths is None:
        keys, values = (x[:, n_history + length - n_kept :] for x in (all_keys, all_values))
        if n_kept < n_history + length:  # a view would keep the whole call alive
            keys, values = keys.clone(), values.clone()
    else:
        slots = (count + n_history - n_kept)[:, None] + torch.arange(n_kept, device=count.device)
        keys, values = _take(all_keys, slots), _take(all_values, slots)
    if lengths is not None or own.began is not None or oldest is not None:
        keys, values = _blank_before(keys, start), _blank_before(values, start)
    end = torch.full_like(count, n_kept)
    return context, AttentionState(keys, values, start, end, position, end.clone())


def check_history(reader: str, history: AttentionState) -> None:
    """Errors:  InputError unless keys and values go together; their shapes alone are as declared."""
    keys, values = history.keys, history.values
    if keys.shape != values.shape or keys.dtype != values.dtype:
        raise InputError(
            f"{reader} needs keys and values of one shape and dtype in its state, got {tuple(keys.shape)} in "
            f"{keys.dtype} and {tuple(values.shape)} in {values.dtype}"
        )


def _slots(state: AttentionState) -> tuple[list[int], list[int], list[int]]:
    """start, end and filled of every row, on the host."""
    check_history("Attention", state)
    starts, ends, filled = torch.stack((state.start, state.end, state.filled)).tolist()
    capacity = state.keys.shape[1]
    for row, (start, end) in enumerate(zip(starts, ends)):
        if not 0 <= start <= end <= capacity:
            raise InputError(
                f"the attention state is damaged: row {row} has slots {start} to {end} of {capacity}; "
                "expected 0 <= start <= end <= capacity. Begin again with initial_state or an undamaged copy"
            )
    return starts, ends, filled


_LOCKS = [threading.Lock() for _ in range(64)]  # many, since on a GPU a claim waits for the device


def _lock(filled: Tensor) -> threading.Lock:
    """The lock of a mark: the same for all views of its memory."""
    return _LOCKS[(filled.untyped_storage().data_ptr() >> 6) % len(_LOCKS)]


def _renew_locks() -> None:
    """Behind a fork the threads that held locks are not there."""
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
    """Zeros before each row's start, so that old values cannot matter: 0 times NaN is not 0."""
    own = torch.arange(buffer.shape[1], device=buffer.device) >= start[:, None]
    return torch.where(own[..., None, None], buffer, 0)
