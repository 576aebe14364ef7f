"""A weight that stays in few bits, those in which it was published or those of a step on a GPU: to PyTorch a plain
tensor, which is made for each use and thrown away after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from statewise.errors import InputError
from statewise.native import memory

aten = torch.ops.aten


class Integers(NamedTuple):
    """W = scale q, or scale q + offset, each group of columns with its own.

    q:       (rows, columns) int8; ``bits`` says what they fit into: 8, or 4, where they are -8 to 7, or 0 to 15 if
             there are offsets
    scales:  (rows, groups) float32, and offsets alike, or None
    """

    q: Tensor
    scales: Tensor
    offsets: Tensor | None
    group: int
    bits: int

    def weight(self) -> Tensor:
        """(rows, columns) float32."""
        n_columns = self.q.shape[1]
        W = self.scales.repeat_interleave(self.group, 1)[:, :n_columns] * self.q
        return W if self.offsets is None else W + self.offsets.repeat_interleave(self.group, 1)[:, :n_columns]


class Blocks(ABC):
    """A matrix in few bits. kind: of its blocks, as "Q4_K"; ``bits`` and ``group`` as :class:`Integers`.

    device, dtype: of the tensor that PyTorch sees
    instead: what to do for a model with plain numbers
    """

    kind: str
    shape: tuple[int, int]
    n_bytes: int
    bits: int
    group: int
    has_offsets: bool
    device = torch.device("cpu")
    dtype = torch.float32
    instead = "load the model without keep_quantised=True"
    at_once = 2**18  # numbers that are unpacked in a piece: they stay in the second cache or near it

    @abstractmethod
    def widened(self, rows: slice | Tensor) -> Tensor:
        """These rows in ``dtype``; a tensor: of ids, of any shape."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """x W^T + bias from the bits as they are; None: W has to be widened."""
        return None

    @abstractmethod
    def integers(self, rows: slice) -> Integers:
        """These rows as whole numbers, from which the same values are made."""

    @abstractmethod
    def are_finite(self) -> bool:
        """Whether all scales are, so that all values must be; at little cost."""

    def pieces(self) -> Iterator[slice]:
        """Slices of the rows, in multiples of 16, that are not too large."""
        n_rows = max(16, self.at_once // self.shape[1] // 16 * 16)
        for first in range(0, self.shape[0], n_rows):
            yield slice(first, min(first + n_rows, self.shape[0]))

    def part(self, rows: slice) -> Blocks:
        """These rows alone, which share the memory."""
        return _Part(self, rows)

    @property
    def whole(self) -> Blocks:
        """What holds the memory."""
        return self


class _Part(Blocks):
    """Some rows of others' blocks, one behind the other."""

    def __init__(self, blocks: Blocks, rows: slice) -> None:
        self.blocks, (self.first, stop, _) = blocks, rows.indices(blocks.shape[0])
        self.kind, self.shape = blocks.kind, (stop - self.first, blocks.shape[1])
        self.n_bytes = blocks.n_bytes * self.shape[0] // max(1, blocks.shape[0])
        self.bits, self.group, self.has_offsets = blocks.bits, blocks.group, blocks.has_offsets

    def widened(self, rows: slice | Tensor) -> Tensor:
        return self.blocks.widened(self._own(rows) if isinstance(rows, slice) else rows + self.first)

    def integers(self, rows: slice) -> Integers:
        return self.blocks.integers(self._own(rows))

    def are_finite(self) -> bool:
        return self.blocks.are_finite()

    @property
    def whole(self) -> Blocks:
        return self.blocks.whole

    def _own(self, rows: slice) -> slice:
        start, stop, _ = rows.indices(self.shape[0])
        return slice(self.first + start, self.first + stop)


class QuantisedTensor(Tensor):
    """Numbers (rows, columns) that are held as ``blocks``, or several matrices of as many rows each, one below
    the other there: (n, rows, columns). Every operation on it gets a plain tensor, made for it alone; an
    embedding gets its rows. It has no gradient, and nothing can be written to it.

    n:       of the matrices; None: one, and no axis for it
    Cost:    of an operation the memory of the whole matrix, and the time to unpack it, but for a linear map whose
             blocks have a product of their own
    """

    blocks: Blocks

    @staticmethod
    def __new__(cls, blocks: Blocks, n: int | None = None) -> QuantisedTensor:
        n_rows, n_columns = blocks.shape
        made: QuantisedTensor = Tensor._make_wrapper_subclass(
            cls,
            blocks.shape if n is None else (n, n_rows // n, n_columns),
            dtype=blocks.dtype,
            device=blocks.device,
            requires_grad=False,
        )
        made.blocks = blocks
        return made

    @property
    def n(self) -> int | None:
        return self.shape[0] if self.ndim == 3 else None

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantisedTensor({tuple(self.shape)}, {self.blocks.kind})"

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _again, (self.blocks, self.n, isinstance(self, nn.Parameter))

    def __deepcopy__(self, memo: object) -> Tensor:
        return _again(self.blocks, self.n, isinstance(self, nn.Parameter))

    def widened(self) -> Tensor:
        """A plain tensor of the same values."""
        out = memory.room_for(torch.empty(self.blocks.shape, dtype=self.dtype, device=self.device))
        for rows in self.blocks.pieces():
            out[rows] = self.blocks.widened(rows)
        return out.view(self.shape)

    def require_as_made(self) -> None:
        """Errors: InputError after a module's ``.half()`` and its like, which change what PyTorch sees alone."""
        if self.dtype != self.blocks.dtype:
            blocks = self.blocks.whole
            raise InputError(
                f"a matrix in {blocks.kind} cannot become {self.dtype}; {blocks.instead}, and convert that"
            )

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """What ``statewise.kernels.linear`` asks first; see :meth:`Blocks.product`."""
        self.require_as_made()
        return self.blocks.product(x, bias) if self.ndim == 2 else None

    def matrices(self) -> list[QuantisedTensor]:
        """Those of several, each by itself."""
        n_rows = self.shape[-2]
        firsts = range(0, self.blocks.shape[0], n_rows)
        return [QuantisedTensor(self.blocks.part(slice(first, first + n_rows))) for first in firsts]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for given in args:
            if isinstance(given, QuantisedTensor):
                given.require_as_made()
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            return QuantisedTensor(args[0].blocks, args[0].n)
        if func is aten.embedding.default and isinstance(args[0], QuantisedTensor):
            return args[0].blocks.widened(args[1])
        if func._schema.is_mutable and isinstance(args[0], QuantisedTensor):
            blocks = args[0].blocks.whole
            raise InputError(f"a matrix in {blocks.kind} cannot be changed; {blocks.instead}")
        plain = tree_map(lambda x: x.widened() if isinstance(x, QuantisedTensor) else x, (tuple(args), dict(kwargs)))
        return func(*plain[0], **plain[1])


def _again(blocks: Blocks, n: int | None, is_parameter: bool) -> Tensor:
    made = QuantisedTensor(blocks, n)
    return nn.Parameter(made, requires_grad=False) if is_parameter else made


def matrices_of(weight: Tensor) -> Sequence[Tensor]:
    """Those of (n, rows, columns), each by itself, as quantised as the whole."""
    return weight.matrices() if isinstance(weight, QuantisedTensor) else weight.unbind()


def require_plain(model: nn.Module, what: str) -> None:
    """Errors: InputError for a model with quantised weights. what: cannot be done with them"""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, QuantisedTensor):
            blocks = parameter.blocks.whole
            raise InputError(f"{what}: {name} is in {blocks.kind}; {blocks.instead}")


def is_quantised(model: nn.Module) -> bool:
    """Whether any of its weights is a :class:`QuantisedTensor`."""
    return any(isinstance(parameter, QuantisedTensor) for parameter in model.parameters())
