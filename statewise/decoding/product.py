"""One matrix product by itself, as a step computes it: to hold it to its definition, and to measure it."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.decoding.call import call_step, one_of_each
from statewise.decoding.latent import TransposedLinear
from statewise.decoding.packing import Packed, pack
from statewise.decoding.program import Program, Weights
from statewise.decoding.reading import WAYS, Way
from statewise.native.memory import in_huge_pages


class Product:
    """``product(x)``: (batch, columns) -> W x of each row, (batch, rows), float32.

    transposed: (batch, rows) -> W^T x, (batch, columns)
    Errors:  InputError without the C kernels when it is called.
    """

    def __init__(self, packed: Packed, *, transposed: bool = False) -> None:
        self.packed = packed
        weight = torch.empty(0)  # whose name the packed one has
        program = Program(Weights(packed.precision, packed.group, {id(weight): packed}))
        sizes = (packed.n_columns, packed.n_rows)
        self.n_in, self.n_out = sizes[::-1] if transposed else sizes
        x = program.buffer("x", self.n_in)
        self._program, self._before = program, program.widths[0]
        y = program.buffer("y", self.n_out)
        if transposed:
            scaled = program.buffer("scaled", packed.n_rows, local=True)
            program.emit(TransposedLinear(weight=packed.matrix(), input=x, output=y, scaled=scaled))
        else:
            program.linear(weight, None, x, y, wait=False)

    def __call__(
        self,
        x: Tensor,
        way: Way = WAYS[0],
        *,
        n_threads: int | None = None,
        vnni: bool | None = None,
        alike: bool = False,
    ) -> Tensor:
        """vnni: by default where it is; False to do without. alike: each row as if it were alone."""
        n_threads = native.n_threads() if n_threads is None else n_threads
        (shared, local), batch = self._program.widths, len(x)
        scratch = torch.full((batch * (shared + n_threads * local),), torch.nan)
        scratch[: batch * self._before].view(batch, -1)[:, : self.n_in] = x
        none = torch.zeros(batch, dtype=torch.int64)
        read = one_of_each(none, torch.arange(batch), none.bool())
        widths = (shared, local)
        call_step(
            self._program.tables(),
            1,
            scratch,
            widths,
            read,
            none,
            batch,
            None,
            way,
            n_threads=n_threads,
            vnni=vnni,
            alike=alike,
        )
        return scratch[batch * self._before : batch * shared].view(batch, -1)[:, : self.n_out]


def large(n_columns: int, n_bytes: int, precision: str) -> Packed:
    """A matrix of about so many bytes, the same random rows again and again."""
    few = pack(torch.randn(256, n_columns), precision)
    n_times = max(1, n_bytes // few.n_bytes)

    def repeated(x: Tensor) -> Tensor:
        out = in_huge_pages(x.new_empty(n_times, *x.shape))
        return out.copy_(x).flatten(0, 1)

    scales = None if few.scales is None else repeated(few.scales)
    return Packed(repeated(few.data), scales, precision, n_times * few.n_rows, n_columns, few.group)
