"""How the C step finds a layer's state: its entries in the table of addresses, and what each step leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from statewise.decoding.operands import History, Slot
from statewise.decoding.program import Program
from statewise.errors import InputError
from statewise.mixers.attention_state import AttentionState, check_history, claim, copy_with_room, release
from statewise.mixers.branched_history import BranchedHistory, Tails
from statewise.operators.state_shape import check_state as fits

# counts: (batch,) how many steps of each row stay; began: (batch,) at which of them a document began last, -1: at none;
# None: in no row
Keep = Callable[[Tensor, Tensor | None], None]


class StateTable(Protocol):
    """One layer's part of the table of states, from ``slot`` on."""

    slot: Slot

    def copied(self, state: Any) -> Any:
        """A copy that steps may write over."""

    def prepare(self, state: Any) -> Any:
        """The state as a step can read it, in plain memory, with the slots after its end for the caller alone."""

    def release(self, state: Any) -> None:
        """Lets others have the slots that :meth:`prepare` kept from them."""

    def successor(self, state: Any, *, every_row: bool) -> Any:
        """Where the state after the step is written. Rows that take no part keep what it holds."""

    def entries(self, before: Any, after: Any) -> Sequence[int]: ...

    def room(self, state: Any) -> int | None:
        """How many more steps can be written without :meth:`prepare`; None: any number."""

    def put(self, state: Any, row: int, other: Any) -> Any:
        """The state with a row replaced by the one row of ``other``: the same tensors, if they have room for it."""

    def check(self, state: Any, rows: Tensor, restarts: Tensor) -> None:
        """Errors: InputError if these rows can take no step more."""

    def positions(self, state: Any) -> Sequence[tuple[Tensor, int | None]]:
        """Positions (batch,) that are looked up in a table, and how many it has."""

    def ahead(self, state: Any, n: int) -> tuple[Any, Sequence[int], Keep]:
        """The state, which is the caller's alone, with room for n more steps; its entries for n steps that leave it as
        it is, until it is said how many of them stay; and how that is said."""

    def branched(self, state: Any, n: int, tails: Tails) -> Any:
        """The state of n continuations of each row, which steps write over and rows are taken from; what a history
        holds stays where it is."""

    def branched_entries(self, state: Any) -> Sequence[int]:
        """The entries for a step of continuations, in place."""


class RecurrentState:
    """(batch, ...) float32 leaves, each with two entries: the address that it is read from, and that it is written to,
    which may be the same."""

    def __init__(self, program: Program, n_leaves: int) -> None:
        self.slot = program.state(2 * n_leaves)

    def leaf(self, i: int) -> Slot:
        return Slot(self.slot + 2 * i)

    def copied(self, state: Any) -> Any:
        return copied(state)

    def prepare(self, state: Any) -> Any:
        return tree_map(plain, state)

    def release(self, state: Any) -> None:
        pass

    def successor(self, state: Any, *, every_row: bool) -> Any:
        return tree_map(torch.empty_like if every_row else torch.clone, state)

    def entries(self, before: Any, after: Any) -> list[int]:
        pairs = zip(tree_flatten(before)[0], tree_flatten(after)[0])
        return [leaf.data_ptr() for pair in pairs for leaf in pair]

    def room(self, state: Any) -> int | None:
        return None

    def put(self, state: Any, row: int, other: Any) -> Any:
        for leaf, new in zip(tree_leaves(state), tree_leaves(other)):
            leaf[row].copy_(new[0])
        return state

    def check(self, state: Any, rows: Tensor, restarts: Tensor) -> None:
        pass

    def positions(self, state: Any) -> list[tuple[Tensor, int | None]]:
        return []

    def ahead(self, state: Any, n: int) -> tuple[Any, Sequence[int], Keep]:
        """The steps leave a state each; one of them is copied."""
        behind = tree_map(lambda leaf: leaf.new_empty(n, *leaf.shape), state)
        pairs = list(zip(tree_leaves(state), tree_leaves(behind)))

        def keep(counts: Tensor, began: Tensor | None) -> None:
            if len(counts) == 1:
                last = int(counts) - 1
                for leaf, after in pairs if last >= 0 else ():
                    leaf.copy_(after[last])
                return
            some = counts.nonzero()[:, 0]
            last_of_some = counts[some] - 1
            for leaf, after in pairs:
                leaf[some] = after[last_of_some, some]

        return state, self.entries(state, behind), keep

    def branched(self, state: Any, n: int, tails: Tails) -> Any:
        return copied(tree_map(lambda leaf: leaf.repeat_interleave(n, 0), state))

    def branched_entries(self, state: Any) -> Sequence[int]:
        return self.entries(state, state)


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
        if not _is_plain(state.filled) or state.keys.is_neg() or state.values.is_neg():
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


class JoinedState:
    """A NamedTuple of states, each with a table of its own; the tables were made one behind the other."""

    def __init__(self, *tables: StateTable) -> None:
        self.tables, self.slot = tables, tables[0].slot

    def copied(self, state: Any) -> Any:
        return _again(state, [table.copied(part) for table, part in zip(self.tables, state)])

    def prepare(self, state: Any) -> Any:
        return _again(state, [table.prepare(part) for table, part in zip(self.tables, state)])

    def release(self, state: Any) -> None:
        for table, part in zip(self.tables, state):
            table.release(part)

    def successor(self, state: Any, *, every_row: bool) -> Any:
        return _again(state, [table.successor(part, every_row=every_row) for table, part in zip(self.tables, state)])

    def entries(self, before: Any, after: Any) -> list[int]:
        return self._joined([table.entries(*pair) for table, *pair in zip(self.tables, before, after)])

    def room(self, state: Any) -> int | None:
        rooms = [table.room(part) for table, part in zip(self.tables, state)]
        return min((room for room in rooms if room is not None), default=None)

    def put(self, state: Any, row: int, other: Any) -> Any:
        parts = zip(self.tables, state, other)
        return _again(state, [table.put(part, row, new) for table, part, new in parts])

    def check(self, state: Any, rows: Tensor, restarts: Tensor) -> None:
        for table, part in zip(self.tables, state):
            table.check(part, rows, restarts)

    def positions(self, state: Any) -> list[tuple[Tensor, int | None]]:
        return [found for table, part in zip(self.tables, state) for found in table.positions(part)]

    def ahead(self, state: Any, n: int) -> tuple[Any, Sequence[int], Keep]:
        parts, entries, keeps = zip(*(table.ahead(part, n) for table, part in zip(self.tables, state)))

        def keep(counts: Tensor, began: Tensor | None) -> None:
            for keep_part in keeps:
                keep_part(counts, began)

        return _again(state, parts), self._joined(entries), keep

    def branched(self, state: Any, n: int, tails: Tails) -> Any:
        return _again(state, [table.branched(part, n, tails) for table, part in zip(self.tables, state)])

    def branched_entries(self, state: Any) -> Sequence[int]:
        return self._joined([table.branched_entries(part) for table, part in zip(self.tables, state)])

    def _joined(self, found: Sequence[Sequence[int]]) -> list[int]:
        joined: list[int] = []
        for table, own in zip(self.tables, found):
            assert table.slot == self.slot + len(joined)
            joined += own
        return joined


def _again(state: Any, parts: Sequence[Any]) -> Any:
    """The same NamedTuple of other parts."""
    return type(state)(*parts)


def check_state(state: Any, shape: Any, batch: int) -> None:
    """Whether a layer's state is of the model, whose mixer declares ``shape``, and C can read it.

    Errors:  InputError naming what differs.
    """
    fits("decoding", state, shape, batch, torch.device("cpu"))
    for part in tree_leaves(state, is_leaf=_is_history):
        if _is_history(part):
            check_history("decoding", part)
    for leaf in tree_leaves(state):
        if leaf.is_floating_point():
            check_plain(leaf, torch.float32)


def _is_history(part: Any) -> bool:
    return isinstance(part, AttentionState)


def check_plain(leaf: Tensor, dtype: torch.dtype) -> None:
    """Errors: InputError unless a tensor of the state has this dtype and an address on the CPU."""
    if leaf.dtype != dtype or leaf.device.type != "cpu" or leaf.layout != torch.strided:
        raise InputError(
            f"a tensor of the state is {leaf.dtype} on {leaf.device.type}, {leaf.layout}; "
            f"decoding in C needs {dtype} on cpu, {torch.strided}"
        )


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


def addresses(tables: Sequence[StateTable], before: Sequence[Any], after: Sequence[Any], n_entries: int) -> Tensor:
    """The table of states, (n_entries,) int64."""
    return table_of(tables, [table.entries(*pair) for table, *pair in zip(tables, before, after)], n_entries)


def table_of(tables: Sequence[StateTable], found: Sequence[Sequence[int]], n_entries: int) -> Tensor:
    """The table of states with these entries of each layer."""
    entries = [0] * n_entries
    for table, own in zip(tables, found):
        entries[table.slot : table.slot + len(own)] = own
    return torch.tensor(entries, dtype=torch.int64, device="cpu")


def copied(state: Any) -> Any:
    """A copy of every tensor, in plain memory and without its graph."""
    leaves, structure = tree_flatten(state)
    plain = torch.contiguous_format
    return tree_unflatten([leaf.detach().resolve_neg().clone(memory_format=plain) for leaf in leaves], structure)


def _is_plain(leaf: Tensor) -> bool:
    return leaf.is_contiguous() and not leaf.is_neg() and not leaf.requires_grad


def _in_rows(buffer: Tensor) -> Tensor:
    """The keys or values themselves, or a copy if the slots of a row do not lie one after the other as they are."""
    buffer = buffer.detach()
    fits = buffer.stride()[1:] == (buffer.shape[2] * buffer.shape[3], buffer.shape[3], 1) and not buffer.is_neg()
    return buffer if fits else buffer.resolve_neg().contiguous()


def plain(leaf: Tensor) -> Tensor:
    """The tensor, or a copy if its numbers do not lie in memory one after the other as they are."""
    return leaf if _is_plain(leaf) else leaf.detach().resolve_neg().contiguous()
