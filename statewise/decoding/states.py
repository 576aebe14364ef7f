"""How the C step finds a layer's state: its entries in the table of addresses, and what each step leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from statewise.decoding.operands import Slot
from statewise.decoding.program import Program
from statewise.errors import InputError
from statewise.mixers.attention_state import AttentionState, check_history
from statewise.mixers.branched_history import Tails
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


def is_plain(leaf: Tensor) -> bool:
    return leaf.is_contiguous() and not leaf.is_neg() and not leaf.requires_grad


def plain(leaf: Tensor) -> Tensor:
    """The tensor, or a copy if its numbers do not lie in memory one after the other as they are."""
    return leaf if is_plain(leaf) else leaf.detach().resolve_neg().contiguous()
