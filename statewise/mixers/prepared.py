"""Mixers around operators that do not depend on the input, and what freezing them means."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Self

import torch
from torch import Tensor, nn

from statewise.kernels.pairs import as_complex
from statewise.mixers.base import Mixer, shared_copy
from statewise.operators.base import Operator
from statewise.precision import as_dtype, full_precision


class PreparableMixer(Mixer):
    """A mixer whose operators are made from its parameters alone: at every call, or once and for all by ``freeze``."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0
        self.prepared: PreparedOperators | None = None

    @abc.abstractmethod
    def build_operators(self) -> Sequence[Operator]:
        """The operators, discrete where the family is, with gradients to the parameters."""

    @property
    def operators(self) -> Sequence[Operator]:
        """As built for this call, or as prepared."""
        return self.build_operators() if self.prepared is None else self.prepared.operators

    def freeze(self) -> Self:
        """A copy for inference that discretises once, not at every call. See :meth:`Mixer.freeze`."""
        if self.is_frozen:
            return self
        with torch.inference_mode(False), torch.no_grad():
            frozen = shared_copy(self)
            frozen.prepared = PreparedOperators(frozen.build_operators())
        frozen.is_frozen = True
        return frozen.eval()


class PreparedOperators(nn.Module):
    """Operators whose matrices were computed once. They move with the module, and stay float32 or wider."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        super().__init__()
        self.operators = [operator.prepare() for operator in operators]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.operators = [_mapped(operator, lambda x: _moved(x, fn)).prepare() for operator in self.operators]
        return self


def wide(x: Tensor) -> Tensor:
    """x in float32 or wider."""
    return x if x.is_complex() else as_dtype(x, full_precision(x.dtype))


def _mapped(operator: Operator, fn: Callable[[Tensor], Tensor]) -> Operator:
    tensors = {field.name: getattr(operator, field.name) for field in fields(operator)}  # type: ignore[arg-type]
    changed = {name: fn(x) for name, x in tensors.items() if isinstance(x, Tensor)}
    return replace(operator, **changed)  # type: ignore[type-var]


def _moved(x: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """fn, as ``Module.to`` makes it, for a coefficient: the device it says, and a dtype of float32 or wider."""
    real = torch.view_as_real(x) if x.is_complex() else x
    moved = fn(real)
    if moved.dtype != torch.promote_types(moved.dtype, torch.float32):
        moved = real.to(moved.device, torch.float32)
    return as_complex(moved) if x.is_complex() else moved
