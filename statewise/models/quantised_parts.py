"""Matrices in few bits put together and reordered as they are: nothing is unpacked, and no number changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from statewise.models.quantised import Blocks, Integers, QuantisedTensor


def stack_rows(matrices: Sequence[Tensor]) -> Tensor:
    """One below the other, also of several types; plain if any of them is.

    >>> stack_rows([torch.ones(1, 2), torch.zeros(2, 2)]).shape
    torch.Size([3, 2])
    """
    held = [matrix for matrix in matrices if isinstance(matrix, QuantisedTensor)]
    if len(held) < len(matrices):
        return torch.cat([_plain(matrix) for matrix in matrices])
    return held[0] if len(held) == 1 else QuantisedTensor(_Stacked([matrix.blocks for matrix in held]))


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Several matrices (n, rows, columns) of each part: the rows of the first one in each part, then those of the
    second in each, and so on; plain if any of them is.

    >>> side_by_side([torch.ones(3, 1, 2), torch.zeros(3, 2, 2)]).shape
    torch.Size([3, 3, 2])
    """
    held = [part for part in parts if isinstance(part, QuantisedTensor)]
    if len(held) < len(parts):
        return torch.cat([_plain(part) for part in parts], 1)
    if len(held) == 1:
        return held[0]
    turns = zip(*(part.matrices() for part in held), strict=True)
    return QuantisedTensor(_Stacked([matrix.blocks for turn in turns for matrix in turn]), len(held[0]))


def take_rows(matrix: Tensor, order: Tensor) -> Tensor:
    """Row i is row order[i] of the matrix."""
    if isinstance(matrix, QuantisedTensor):
        return QuantisedTensor(_Reordered(matrix.blocks, order, None))
    return matrix[order]


def take_columns(matrix: Tensor, order: Tensor) -> Tensor:
    """Column i is column order[i] of the matrix; plain where that would tear numbers apart that share a scale."""
    if isinstance(matrix, QuantisedTensor):
        group = matrix.blocks.group
        if len(order) % group == 0:
            first = order.view(-1, group)[:, :1]
            if bool((first % group == 0).all()) and torch.equal(order.view(-1, group), first + torch.arange(group)):
                return QuantisedTensor(_Reordered(matrix.blocks, None, order))
    return _plain(matrix)[:, order]


def some_rows(matrix: Tensor, rows: slice) -> Tensor:
    """These rows of the matrix."""
    return QuantisedTensor(matrix.blocks.part(rows)) if isinstance(matrix, QuantisedTensor) else matrix[rows]


def head_by_head(keys: Tensor, values: Tensor) -> Tensor:
    """Each head's map to keys, which (n_heads, rank, d_key) has from the right, and below it that to values,
    (n_heads, d_value, rank): (n_heads (d_key + d_value), rank); plain if one of both is."""
    if isinstance(keys, QuantisedTensor) and isinstance(values, QuantisedTensor):
        return QuantisedTensor(KeysAndValues(keys.blocks, values.blocks, len(keys)))
    return torch.cat((_plain(keys).mT, _plain(values)), 1).flatten(0, 1)


def _plain(matrix: Tensor) -> Tensor:
    return matrix.widened() if isinstance(matrix, QuantisedTensor) else matrix


class _Stacked(Blocks):
    """Parts one below the other. Where their types differ, whole numbers are in the widest, a scale for each of the
    smallest groups."""

    def __init__(self, parts: list[Blocks]) -> None:
        self.parts, self.kind = parts, " and ".join(dict.fromkeys(part.kind for part in parts))
        self.shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
        self.n_bytes = sum(part.n_bytes for part in parts)
        self.firsts = list(accumulate((part.shape[0] for part in parts[:-1]), initial=0))
        self.has_offsets = any(part.has_offsets for part in parts)
        self.group, self.bits = min(part.group for part in parts), max(part.bits for part in parts)
        if any(part.has_offsets != self.has_offsets for part in parts):
            self.bits = 8  # -8 to 7, and 0 to 15, are together no four bits

    def widened(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            return torch.cat([part.widened(own) for part, own in self._within(rows)])
        flat = rows.reshape(-1)
        out = torch.empty(len(flat), self.shape[1])
        for part, first in zip(self.parts, self.firsts):
            here = ((flat >= first) & (flat < first + part.shape[0])).nonzero()[:, 0]
            if len(here):
                out[here] = part.widened(flat[here] - first)
        return out.view(*rows.shape, self.shape[1])

    def integers(self, rows: slice) -> Integers:
        found = [self._in_common(part.integers(own)) for part, own in self._within(rows)]
        offsets = torch.cat([x.offsets for x in found if x.offsets is not None]) if self.has_offsets else None
        q, scales = torch.cat([x.q for x in found]), torch.cat([x.scales for x in found])
        return Integers(q, scales, offsets, self.group, self.bits)

    def are_finite(self) -> bool:
        return all(blocks.are_finite() for blocks in {id(part.whole): part.whole for part in self.parts}.values())

    def _within(self, rows: slice) -> Iterator[tuple[Blocks, slice]]:
        start, stop, _ = rows.indices(self.shape[0])
        for i in range(bisect_right(self.firsts, start) - 1, bisect_left(self.firsts, stop)):
            part, first = self.parts[i], self.firsts[i]
            low, high = max(start - first, 0), min(stop - first, part.shape[0])
            if low < high:
                yield part, slice(low, high)

    def _in_common(self, x: Integers) -> Integers:
        n_groups = -(-self.shape[1] // self.group)
        scales, offsets = (
            None if part is None else part.repeat_interleave(x.group // self.group, 1)[:, :n_groups]
            for part in (x.scales, x.offsets)
        )
        assert scales is not None
        if offsets is None and self.has_offsets:
            offsets = torch.zeros_like(scales)
        return Integers(x.q, scales, offsets, self.group, self.bits)


class _Reordered(Blocks):
    """Rows in another order, or columns, whole groups at a time."""

    def __init__(self, blocks: Blocks, rows: Tensor | None, columns: Tensor | None) -> None:
        self.blocks, self.rows, self.columns = blocks, rows, columns
        self.kind, self.n_bytes, self.shape = blocks.kind, blocks.n_bytes, blocks.shape
        self.bits, self.group, self.has_offsets = blocks.bits, blocks.group, blocks.has_offsets
        if rows is not None:
            self.shape = len(rows), blocks.shape[1]

    def widened(self, rows: slice | Tensor) -> Tensor:
        own = rows if self.rows is None else self.rows[rows]
        found = self.blocks.widened(own)
        return found if self.columns is None else found[..., self.columns]

    def integers(self, rows: slice) -> Integers:
        if self.rows is not None:
            return self._of_rows(self.rows[rows])
        assert self.columns is not None
        found, groups = self.blocks.integers(rows), self.columns[:: self.group] // self.group
        offsets = None if found.offsets is None else found.offsets[:, groups]
        return found._replace(q=found.q[:, self.columns], scales=found.scales[:, groups], offsets=offsets)

    def are_finite(self) -> bool:
        return self.blocks.are_finite()

    def _of_rows(self, wanted: Tensor) -> Integers:
        """All rows between the first and the last are unpacked, which are few more: mostly those of a head."""
        first = int(wanted.min())
        found = self.blocks.integers(slice(first, int(wanted.max()) + 1))
        own = wanted - first
        offsets = None if found.offsets is None else found.offsets[own]
        return found._replace(q=found.q[own], scales=found.scales[own], offsets=offsets)


class KeysAndValues(Blocks):
    """See :func:`head_by_head`. Numbers of a map to keys share scales along its other axis, so that only rows of one
    head's values have whole numbers; a product with a map to keys is one with :meth:`keys_of`."""

    def __init__(self, keys: Blocks, values: Blocks, n_heads: int) -> None:
        self.keys, self.values, self.rank = keys, values, values.shape[1]
        self.d_key, self.d_value = keys.shape[1], values.shape[0] // n_heads
        self.kind = " and ".join(dict.fromkeys((keys.kind, values.kind)))
        self.shape = n_heads * (self.d_key + self.d_value), self.rank
        self.n_bytes = keys.n_bytes + values.n_bytes
        self.bits, self.group, self.has_offsets = values.bits, values.group, values.has_offsets

    def keys_of(self, head: int) -> Blocks:
        """(rank, d_key): the head's map to keys, turned."""
        return self.keys.part(slice(head * self.rank, (head + 1) * self.rank))

    def widened(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            return self.widened(slice(None))[rows]
        start, stop, _ = rows.indices(self.shape[0])
        width = self.d_key + self.d_value
        first = start // width
        maps = [
            map
            for head in range(first, -(-stop // width))
            for map in (self.keys_of(head).widened(slice(None)).T, self.values.widened(self._values_of(head)))
        ]
        return torch.cat([torch.empty(0, self.rank), *maps])[start - first * width : stop - first * width]

    def integers(self, rows: slice) -> Integers:
        start, stop, _ = rows.indices(self.shape[0])
        head, first = divmod(start, self.d_key + self.d_value)
        assert self.d_key <= first <= first + stop - start <= self.d_key + self.d_value
        own = head * self.d_value + first - self.d_key
        return self.values.integers(slice(own, own + stop - start))

    def are_finite(self) -> bool:
        return self.keys.are_finite() and self.values.are_finite()

    def _values_of(self, head: int) -> slice:
        return slice(head * self.d_value, (head + 1) * self.d_value)
