"""Weights as the C step reads them: in four precisions, sixteen rows of a matrix side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.decoding.instructions import BLOCK, TILE, Matrix, Precision
from statewise.errors import InputError
from statewise.native.memory import in_huge_pages

PRECISIONS = tuple(precision.name.lower() for precision in Precision)
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
    """A matrix in the layout of decode_matrix.h."""

    data: Tensor
    scales: Tensor | None
    precision: str
    n_rows: int
    n_columns: int
    group: int

    @property
    def n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.data, self.scales) if x is not None)

    @property
    def rounded_width(self) -> int:
        """Floats that C needs for one x in integers, as decode_integer.h lays it out; 0 where x stays as it is."""
        if self.precision not in LARGEST:
            return 0
        n_words, n_tiles, n_groups = (-(-self.n_columns // n) for n in (WORD, TILE, self.group))
        return n_words * WORD // 2 + n_tiles + (n_tiles + n_groups if self.precision == "int4" else 0)

    def matrix(self) -> Matrix:
        """As an operand."""
        precision = Precision[self.precision.upper()]
        return Matrix(self.data, self.scales, precision, self.n_rows, self.n_columns, self.group)


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

    Cost:    O(elements); the memory of the packed matrix, and while it is made of a float32 one.
    Errors:  InputError as :func:`quantise`.
    """
    n_rows, n_columns = weight.shape
    scales = None
    if precision in LARGEST:
        quantised = quantise(weight, precision, group)
        group, scales = quantised.group, _in_blocks(quantised.scales)
        q = torch.nn.functional.pad(quantised.q, (0, -n_columns % WORD))
        data = _in_blocks(_words(q)) if precision == "int4" else _in_blocks(q.view(torch.int16))
    else:
        data = _in_blocks(weight.detach().to(torch.float32 if precision == "float32" else torch.bfloat16))
    return Packed(data, scales, precision, n_rows, n_columns, group or n_columns)


def _in_blocks(x: Tensor) -> Tensor:
    """(rows, n) -> (blocks, n, 16), zeros for the rows that the last block lacks."""
    n_rows, n = x.shape
    n_blocks = -(-n_rows // BLOCK)
    out = in_huge_pages(x.new_zeros(n_blocks, n, BLOCK))
    whole = n_rows // BLOCK
    out[:whole] = x[: whole * BLOCK].reshape(whole, BLOCK, n).transpose(1, 2)
    if whole < n_blocks:
        out[whole, :, : n_rows - whole * BLOCK] = x[whole * BLOCK :].T
    return out


def _words(q: Tensor) -> Tensor:
    """(rows, columns) of -8 ... 7 -> (rows, words) int32: q + 8 of columns 0, 2, 4, 6 in the lower half, the first in
    the lowest bits, and of 1, 3, 5, 7 in the upper half, so that four shifts give four pairs of neighbours."""
    q = q.unflatten(1, (-1, WORD))
    words = torch.zeros(q.shape[:2], dtype=torch.int32, device=q.device)
    for j in range(WORD):
        words |= (q[:, :, j].to(torch.int32) + WORD) << (4 * (j // 2) + 16 * (j % 2))
    return words
