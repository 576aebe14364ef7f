"""The diagonal scan where there is no C: the definition, and PyTorch's derivative of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statewise.kernels.adjoint import gradients_inside
from statewise.kernels.diagonal_scan.reference import diagonal_scan_reference

forward = diagonal_scan_reference


def backward(grad_y: Tensor, grad_state: Tensor, *given: Any) -> list[Tensor | None]:
    return gradients_inside(diagonal_scan_reference, given, (grad_y, grad_state))[:6]
