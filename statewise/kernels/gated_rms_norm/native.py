"""The gated norm and its adjoint in C: with the norm of one row, in rms_norm.inc.h."""

from __future__ import annotations

from torch import Tensor

from statewise.kernels.rms_norm.native import GATE_FIRST, GATE_LAST, gradients, normed


def forward(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    return normed(x, z, weight, eps, n_groups=n_groups, gate=GATE_LAST if norm_before_gate else GATE_FIRST)


def backward(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool
) -> tuple[Tensor | None, ...]:
    gate = GATE_LAST if norm_before_gate else GATE_FIRST
    return gradients(grad, x, z, weight, eps, n_groups=n_groups, gate=gate)
