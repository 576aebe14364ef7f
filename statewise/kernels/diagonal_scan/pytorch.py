"""The diagonal scan where there is no C: the definition, and PyTorch's derivative of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.kernels.adjoint import gradients_inside
from statewise.kernels.diagonal_scan.reference import diagonal_scan_reference

forward = diagonal_scan_reference


def backward(grad_y: Tensor, grad_state: Tensor, *given: Any) -> list[Tensor | None]:
    # an empty one may have any strides, and PyTorch then cannot see pairs in it
    grad_state = grad_state.clone(memory_format=torch.contiguous_format)
    return gradients_inside(diagonal_scan_reference, given, (grad_y, grad_state))[:6]
