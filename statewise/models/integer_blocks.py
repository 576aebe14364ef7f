"""A matrix in 8 or 4 bits where a model is, of which a GPU's kernels read the bits."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.kernels.step import product
from statewise.kernels.step.pytorch import GROUP, IntegerMatrix
from statewise.models.quantised import Blocks, Integers


class IntegerBlocks(Blocks):
    """An :class:`~statewise.kernels.step.pytorch.IntegerMatrix` as a weight. dtype: of the model that it is of."""

    has_offsets = False
    instead = "use the model that it was made from"
    at_once = 2**26  # a GPU wants many

    def __init__(self, matrix: IntegerMatrix, dtype: torch.dtype) -> None:
        self.matrix, self.dtype = matrix, dtype
        self.bits, self.kind = matrix.bits, f"int{matrix.bits}"
        self.shape = (len(matrix.data), matrix.n_columns)
        self.group = GROUP if matrix.bits == 4 else max(1, matrix.n_columns)
        self.n_bytes = sum(m.numel() * m.element_size() for m in (matrix.data, matrix.scales))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.matrix.data.device

    def widened(self, rows: slice | Tensor) -> Tensor:
        return self.matrix.rows(rows).widened().to(self.dtype)

    def integers(self, rows: slice) -> Integers:
        found = self.matrix.rows(rows)
        n_groups = -(-self.shape[1] // self.group)
        return Integers(found.integers(), found.scales[:, :n_groups].float(), None, self.group, self.bits)

    def are_finite(self) -> bool:
        return bool(self.matrix.scales.isfinite().all())

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return product(x, self.matrix, bias)

    def part(self, rows: slice) -> IntegerBlocks:
        return IntegerBlocks(self.matrix.rows(rows), self.dtype)
