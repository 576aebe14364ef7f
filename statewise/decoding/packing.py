"""Weights as the C step reads them: in four precisions, sixteen rows of a matrix side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.decoding.operands import BLOCK, TILE, Matrix, Precision
from statewise.errors import InputError
from statewise.models.quantised import Blocks, Integers, QuantisedTensor, matrices_of
from statewise.native.memory import in_huge_pages

PRECISIONS = tuple(precision.name.lower() for precision in Precision)
STORED = "stored"  # instead of a precision: each matrix as the model has it, integers included
WORD = 8  # columns that integers are filled up to, and 4-bit numbers in a word
LARGEST = {"int8": 127, "int4": 8}
INT4_GROUP = 32
SHRINKING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's range, where that makes the squared error smaller


@dataclass(frozen=True)
class Quantised:
    """W = scale q: q (rows, columns) int8, and scales (rows, groups), of ``group`` columns each, in bfloat16.

    The product of both is exact in float32, so it is the same matrix wherever it is computed.
    """

    q: Tensor
    scales: Tensor
    group: int

    def weight(self) -> Tensor:
        """(rows, columns) float32."""
        scales = self.scales.float().repeat_interleave(self.group, 1)[:, : self.q.shape[1]]
        return scales * self.q


@dataclass(frozen=True)
class Packed:
    """A matrix in the layout of decode_matrix.h. Offsets are there for numbers that are stored with them."""

    data: Tensor
    scales: Tensor | None
    precision: str
    n_rows: int
    n_columns: int
    group: int
    offsets: Tensor | None = None

    @property
    def n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.data, self.scales, self.offsets) if x is not None)

    @property
    def rounded_width(self) -> int:
        """Floats that C needs for one x in integers, as decode_integer.h lays it out; 0 where x stays as it is."""
        if self.precision not in LARGEST:
            return 0
        n_words, n_tiles, n_groups = (-(-self.n_columns // n) for n in (WORD, TILE, self.group))
        has_sums = self.precision == "int4" or self.offsets is not None
        return n_words * WORD // 2 + n_tiles + (n_tiles + n_groups if has_sums else 0)

    def matrix(self) -> Matrix:
        """As an operand."""
        precision = Precision[self.precision.upper()]
        wide = self.scales is not None and self.scales.dtype == torch.float32
        return Matrix(self.data, self.scales, self.offsets, precision, self.n_rows, self.n_columns, self.group, wide)


def packed_bytes(n_rows: int, n_columns: int, precision: str) -> int:
    """The memory of a matrix that is packed with the default group, before it is there."""
    n_rows = -(-n_rows // BLOCK) * BLOCK
    if precision not in LARGEST:
        return n_rows * n_columns * (4 if precision == "float32" else 2)
    n_words = -(-n_columns // WORD)
    if precision == "int8":
        return n_rows * (n_words * WORD + 2)
    return n_rows * (n_words * WORD // 2 + 2 * -(-n_columns // INT4_GROUP))


def check_precision(precision: object, group: object) -> None:
    """Errors: InputError for a precision that is none of :data:`PRECISIONS`, or a group that it cannot have."""
    if precision not in PRECISIONS:
        raise InputError(f"weights={precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    if group is None:
        return
    if precision not in LARGEST:
        raise InputError(f"group={group!r} is for int8 and int4; {precision} has no scales: leave it out")
    if not isinstance(group, int) or isinstance(group, bool) or group < WORD or group % WORD:
        raise InputError(f"group={group!r} is out of range; use a multiple of {WORD}, or None for the default")


def quantise(weight: Tensor, precision: str, group: int | None = None) -> Quantised:
    """The nearest ``scale q`` to a matrix (rows, columns), q being integers of 8 or of 4 bits.

    group: columns that share a scale; by default all of a row in int8, 32 in int4
    int8:  -127 to 127, the scale being the largest size / 127
    int4:  -8 to 7. The number of the largest size becomes -8, so the scale's sign is the opposite of its own; of six
           scales that reach so far or less, the one of the smallest squared error is taken.

    Cost:    O(elements), times six in int4.
    Errors:  InputError if the matrix holds NaN or infinity.
    """
    n_columns = weight.shape[1]
    weight = weight.detach().float()
    if not bool(weight.isfinite().all()):
        raise InputError(f"the weights hold NaN or infinity, which {precision} cannot hold; use float32")
    group = group or (INT4_GROUP if precision == "int4" else max(-(-n_columns // WORD) * WORD, WORD))
    n_groups = -(-n_columns // group)
    at_once = max(1, (1 << 20) // n_columns)  # rows whose temporaries stay small
    parts = [_quantise(rows, precision, n_groups, group) for rows in weight.split(at_once)]
    return Quantised(torch.cat([q for q, _ in parts])[:, :n_columns], torch.cat([s for _, s in parts]), group)


def _quantise(weight: Tensor, precision: str, n_groups: int, group: int) -> tuple[Tensor, Tensor]:
    padded = torch.nn.functional.pad(weight, (0, n_groups * group - weight.shape[1])).unflatten(1, (n_groups, group))
    largest = padded.gather(2, padded.abs().argmax(2, keepdim=True))  # with its sign
    most = LARGEST[precision]
    low, high = (-most, most) if precision == "int8" else (-most, most - 1)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for part in SHRINKING if precision == "int4" else (1.0,):
        scale = (largest * (-part / most)).bfloat16()
        steps = scale.float()
        q = (padded / steps.where(steps != 0, 1.0)).round().clamp(low, high)
        error = (q * steps - padded).square().sum(2, keepdim=True)
        if best is not None:
            better = error < best[2]
            q, scale, error = (new.where(better, old) for new, old in zip((q, scale, error), best))
        best = q, scale, error
    assert best is not None  # at least one scale was tried
    return best[0].to(torch.int8).flatten(1), best[1].squeeze(2)


def pack(weight: Tensor, precision: str, group: int | None = None) -> Packed:
    """A matrix (rows, columns) for the C step.

    precision: one of :data:`PRECISIONS`; or :data:`STORED`: the whole numbers of a ``QuantisedTensor`` with its scales,
               exactly, and other weights in float32, or in bfloat16 if they are
    Cost:    O(elements); the memory of the packed matrix, and while it is made of a float32 one, which a stored one
             does not need.
    Errors:  InputError as :func:`quantise`.
    """
    n_rows, n_columns = weight.shape
    if precision == STORED:
        if isinstance(weight, QuantisedTensor):
            blocks = weight.blocks
            return _pack_integers(blocks, n_rows, ((rows.start, blocks.integers(rows)) for rows in blocks.pieces()))
        precision = "bfloat16" if weight.dtype == torch.bfloat16 else "float32"
    if precision in LARGEST:
        quantised = quantise(weight, precision, group)
        numbers = _numbers(quantised.q, precision, WORD)
        return Packed(_in_blocks(numbers), _in_blocks(quantised.scales), precision, n_rows, n_columns, quantised.group)
    data = _in_blocks(weight.detach().to(torch.float32 if precision == "float32" else torch.bfloat16))
    return Packed(data, None, precision, n_rows, n_columns, group or n_columns)


def pack_experts(weight: Tensor, precision: str, group: int | None = None, *, turns: int = 1) -> Packed:
    """The matrices of all experts, (experts, rows, columns), one behind the other, each from a block on; n_rows
    is that of one.

    turns: parts that each expert's rows are in, of which blocks lie in turns: 2 for gates and the values beside them
    """
    n_experts, n_rows, _ = weight.shape
    whole: Packed | None = None
    for number, expert in enumerate(matrices_of(weight)):
        one = _pack_expert(expert.detach(), precision, group, turns)
        if whole is None:
            rooms: dict[str, Any] = {name: _room(x, n_experts) for name, x in _numbers_of(one)}
            whole = replace(one, n_rows=n_rows if turns == 1 else one.n_rows, **rooms)
        blocks = slice(number * len(one.data), (number + 1) * len(one.data))
        for name, x in _numbers_of(one):
            getattr(whole, name)[blocks] = x
    assert whole is not None  # there is an expert
    return whole


def _pack_expert(weight: Tensor, precision: str, group: int | None, turns: int) -> Packed:
    if precision != STORED or not isinstance(weight, QuantisedTensor):
        return pack(_in_turns(weight, turns), precision, group)
    found = weight.blocks.integers(slice(None))
    offsets = None if found.offsets is None else _in_turns(found.offsets, turns)
    turned = found._replace(q=_in_turns(found.q, turns), scales=_in_turns(found.scales, turns), offsets=offsets)
    return _pack_integers(weight.blocks, len(turned.q), [(0, turned)])


def _in_turns(x: Tensor, turns: int) -> Tensor:
    """(rows, n) -> the parts of the rows, each filled up to whole blocks, of which blocks lie in turns."""
    parts = x.unflatten(0, (turns, len(x) // turns))
    parts = torch.nn.functional.pad(parts, (0, 0, 0, -parts.shape[1] % BLOCK))
    return parts.unflatten(1, (-1, BLOCK)).transpose(0, 1).reshape(-1, x.shape[1])


def _numbers_of(packed: Packed) -> list[tuple[str, Tensor]]:
    named = (("data", packed.data), ("scales", packed.scales), ("offsets", packed.offsets))
    return [(name, x) for name, x in named if x is not None]


def _room(x: Tensor, n_times: int) -> Tensor:
    """Zeros, n times as many."""
    return in_huge_pages(x.new_zeros(n_times * len(x), *x.shape[1:]))


def _pack_integers(form: Blocks, n_rows: int, pieces: Iterable[tuple[int, Integers]]) -> Packed:
    """form: of all numbers; pieces: rows from there on, which but for the last are whole blocks"""
    n_columns, group, precision = form.shape[1], form.group, f"int{form.bits}"
    n_groups = -(-n_columns // group)
    words, dtype = (n_columns + WORD - 1) // WORD, torch.int32 if precision == "int4" else torch.int16
    data = _zeros(n_rows, words if precision == "int4" else words * WORD // 2, dtype)
    scales = _zeros(n_rows, n_groups, torch.float32)
    offsets = _zeros(n_rows, n_groups, torch.float32) if form.has_offsets else None
    for first, integers in pieces:
        _put(data, first, _numbers(integers.q, precision, 0 if form.has_offsets else WORD))
        _put(scales, first, integers.scales)
        if offsets is not None and integers.offsets is not None:
            _put(offsets, first, integers.offsets)
    return Packed(data, scales, precision, n_rows, n_columns, group, offsets)


def _numbers(q: Tensor, precision: str, zero: int) -> Tensor:
    """(rows, columns) int8 -> as they lie in a row, (rows, words) int32 or (rows, pairs) int16. zero: what 4-bit
    numbers have 0 as"""
    q = torch.nn.functional.pad(q, (0, -q.shape[1] % WORD))
    return _words(q, zero) if precision == "int4" else q.view(torch.int16)


def _in_blocks(x: Tensor) -> Tensor:
    """(rows, n) -> (blocks, n, 16), zeros for the rows that the last block lacks."""
    out = _zeros(x.shape[0], x.shape[1], x.dtype)
    _put(out, 0, x)
    return out


def _zeros(n_rows: int, n: int, dtype: torch.dtype) -> Tensor:
    return in_huge_pages(torch.zeros(-(-n_rows // BLOCK), n, BLOCK, dtype=dtype, device="cpu"))


def _put(out: Tensor, first: int, x: Tensor) -> None:
    """Puts rows (rows, n) into blocks (blocks, n, 16), from row ``first`` on, a multiple of 16."""
    n_rows, n = x.shape
    whole, first = n_rows // BLOCK, first // BLOCK
    out[first : first + whole] = x[: whole * BLOCK].reshape(whole, BLOCK, n).transpose(1, 2)
    if whole * BLOCK < n_rows:
        out[first + whole, :, : n_rows - whole * BLOCK] = x[whole * BLOCK :].T


def _words(q: Tensor, zero: int) -> Tensor:
    """(rows, columns) of -8 ... 7, or of 0 ... 15 -> (rows, words) int32: q + zero of columns 0, 2, 4, 6 in the lower
    half, the first in the lowest bits, and of 1, 3, 5, 7 in the upper half, so that four shifts give four pairs of
    neighbours."""
    q = q.unflatten(1, (-1, WORD))
    words = torch.zeros(q.shape[:2], dtype=torch.int32, device=q.device)
    for j in range(WORD):
        words |= (q[:, :, j].to(torch.int32) + zero) << (4 * (j // 2) + 16 * (j % 2))
    return words
