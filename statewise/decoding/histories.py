"""The state of attention in a step: keys and values that stay where they are, and positions that may be in a table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.decoding.operands import History, Slot
from statewise.decoding.program import Program
from statewise.decoding.states import Keep, copied, is_plain, plain
from statewise.errors import InputError
from statewise.mixers.attention_state import AttentionState, claim, copy_with_room, release
from statewise.mixers.branched_history import BranchedHistory, Tails


class AttentionHistory:
    """The keys and values stay where they are, and a step writes into the next free slots; see ``attention_state``."""

    def __init__(self, program: Program, window: int | None, max_positions: int | None) -> None:
        self.slot = program.state(len(History._fields))
        self.window, self.max_positions = window, max_positions

    def member(self, name: str) -> Slot:
        return Slot(self.slot + History._fields.index(name))

    def copied(self, state: AttentionState) -> AttentionState:
        """With room for the next step: a full buffer is not copied twice."""
        return copy_with_room(state, 1, self.window)

    def prepare(self, state: AttentionState) -> AttentionState:
        if not is_plain(state.filled) or state.keys.is_neg() or state.values.is_neg():
            state = copied(state)
        start, end, position = (plain(count) for count in (state.start, state.end, state.position))
        return claim(state._replace(start=start, end=end, position=position), 1, self.window)[0]

    def release(self, state: AttentionState) -> None:
        with torch.inference_mode():  # a mark that was made in it may be written to nowhere else, any other here too
            release(state)

    def successor(self, state: AttentionState, *, every_row: bool) -> AttentionState:
        return state._replace(start=state.start.clone(), end=state.end.clone(), position=state.position.clone())

    def entries(self, before: AttentionState, after: AttentionState) -> History:
        return History(
            keys=before.keys.data_ptr(),
            values=before.values.data_ptr(),
            key_stride=before.keys.stride(0),
            value_stride=before.values.stride(0),
            start=before.start.data_ptr(),
            end=before.end.data_ptr(),
            position=before.position.data_ptr(),
            start_next=after.start.data_ptr(),
            end_next=after.end.data_ptr(),
            position_next=after.position.data_ptr(),
            filled=after.filled.data_ptr(),
        )

    def room(self, state: AttentionState) -> int:
        return state.keys.shape[1] - int(state.end.max())

    def put(self, state: AttentionState, row: int, other: AttentionState) -> AttentionState:
        """Rows have a buffer in common: where it is too short for the new one, all are copied."""
        new = copy_with_room(other, 1, self.window)
        n_history, capacity = int(new.end), state.keys.shape[1]
        if n_history >= capacity:
            state = copy_with_room(state, n_history + 1, self.window)
        for buffer, history in ((state.keys, new.keys), (state.values, new.values)):
            buffer[row, :n_history].copy_(history[0, :n_history])
            buffer[row, n_history:] = 0
        for count, value in zip(state[2:], new[2:]):
            count[row] = value[0]
        return state

    def check(self, state: AttentionState, rows: Tensor, restarts: Tensor) -> None:
        check_positions(state.position, rows, restarts, self.max_positions)

    def positions(self, state: AttentionState) -> list[tuple[Tensor, int | None]]:
        return [(state.position, self.max_positions)]

    def ahead(self, state: AttentionState, n: int) -> tuple[AttentionState, Sequence[int], Keep]:
        """The keys and values lie in the slots behind the state's end, with counts of their own until they stay."""
        if self.room(state) < n:
            state = copy_with_room(state, n, self.window)
        behind = self.successor(state, every_row=True)

        def keep(counts: Tensor, began: Tensor | None) -> None:
            if began is not None:
                state.start.copy_(torch.where(began >= 0, state.end + began, state.start))
                state.position.masked_fill_(began >= 0, 0).sub_(began.clamp(min=0))
            state.position.add_(counts)
            state.end.add_(counts)
            state.filled.copy_(state.end)
            for count, kept in zip(
                (behind.start, behind.end, behind.position), (state.start, state.end, state.position)
            ):
                count.copy_(kept)

        return state, self.entries(behind, behind), keep

    def branched(self, state: AttentionState, n: int, tails: Tails) -> BranchedHistory:
        return BranchedHistory.of(state._replace(keys=_in_rows(state.keys), values=_in_rows(state.values)), n, tails)

    def branched_entries(self, state: BranchedHistory) -> History:
        prefix, tails = state.prefix, state.tails
        return History(
            keys=state.keys.data_ptr(),
            values=state.values.data_ptr(),
            key_stride=state.keys.stride(0),
            value_stride=state.values.stride(0),
            start=state.start.data_ptr(),
            end=state.end.data_ptr(),
            position=state.position.data_ptr(),
            start_next=state.start.data_ptr(),
            end_next=state.end.data_ptr(),
            position_next=state.position.data_ptr(),
            filled=state.end.data_ptr(),  # the same number
            prefix_keys=prefix.keys.data_ptr(),
            prefix_values=prefix.values.data_ptr(),
            prefix_key_stride=prefix.keys.stride(0),
            prefix_value_stride=prefix.values.stride(0),
            prefix_row=state.row.data_ptr(),
            border=state.border.data_ptr(),
            source=tails.source.data_ptr(),
            source_stride=tails.source.stride(0),
        )


def _in_rows(buffer: Tensor) -> Tensor:
    """The keys or values themselves, or a copy if the slots of a row do not lie one after the other as they are."""
    buffer = buffer.detach()
    fits = buffer.stride()[1:] == (buffer.shape[2] * buffer.shape[3], buffer.shape[3], 1) and not buffer.is_neg()
    return buffer if fits else buffer.resolve_neg().contiguous()


def check_positions(position: Tensor, rows: Tensor, restarts: Tensor, n_positions: int | None) -> None:
    """Errors: InputError if the next token of one of these rows has no position in a table of ``n_positions``."""
    if n_positions is None:
        return
    check_within(position.masked_fill(restarts, 0)[rows], n_positions)


def check_within(position: Tensor, n_positions: int) -> None:
    """Errors: InputError if one of these positions is not in a table of ``n_positions``."""
    if position.numel() and (int(position.min()) < 0 or int(position.max()) >= n_positions):
        raise InputError(
            f"a row reaches position {int(position.max())}, but max_positions={n_positions} gives positions "
            f"0 to {n_positions - 1}; use shorter documents or a larger max_positions"
        )
