"""The gated norm and its adjoint in Triton: with the norm of one row, in rms_norm/triton.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.kernels.gated_rms_norm import pytorch
from statewise.kernels.gpu.build import Build
from statewise.kernels.rms_norm.native import GATE_FIRST, GATE_LAST
from statewise.kernels.rms_norm.triton import builds_with, gradients, normed


def refusal(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> str | None:
    return None


def forward(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    if not x.numel():
        return pytorch.forward(x, z, weight, eps, n_groups, norm_before_gate)
    return normed(x, z, weight, eps, n_groups=n_groups, gate=GATE_LAST if norm_before_gate else GATE_FIRST)


def backward(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool
) -> tuple[Tensor | None, ...]:
    if not x.numel():
        return pytorch.backward(grad, x, z, weight, eps, n_groups, norm_before_gate)
    gate = GATE_LAST if norm_before_gate else GATE_FIRST
    return gradients(grad, x, z, weight, eps, n_groups=n_groups, gate=gate)


def builds() -> list[Build]:
    return [build for gate in (GATE_FIRST, GATE_LAST) for build in builds_with(gate)]


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    x = torch.linspace(-2, 3, 3 * 5 * 300, device=device).sin().view(3, 5, 300)
    weight = x[0, 0].cos()
    return [
        (x.to(dtype), x.mul(1.7).cos().to(dtype), weight, 1e-5, n_groups, last)
        for dtype, n_groups, last in ((torch.float32, 3, False), (torch.bfloat16, 1, True))
    ]
