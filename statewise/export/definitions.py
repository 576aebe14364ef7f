"""What each kernel computes, in plain PyTorch: what stands for it in an exported program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.export import recurrences
from statewise.kernels import gated_rms_norm, rms_norm
from statewise.kernels.gelu_tanh import gelu_tanh_reference
from statewise.kernels.selective_scan import Arguments


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu_tanh_reference(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def _short_convolution(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: None, silu: bool
) -> Tensor:
    """One sum over the history and the step, which the definition writes as one term for each tap."""
    past = torch.cat([history, x.to(history.dtype)], 1)
    weight = taps.flip(1).mT.reshape(*taps.shape[::-1], *[1] * (x.ndim - 3))
    z = (weight * past).sum(1, keepdim=True)
    z = z if bias is None else z + bias.reshape(-1, *[1] * (x.ndim - 3))
    return (F.silu(z) if silu else z).to(x.dtype)


def _selective_scan(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The third output, states kept for gradients, is empty where none are recorded."""
    given = Arguments(*arguments[:-1])
    y, h = given.widened().definition()
    return y.to(given.u.dtype), h, h.new_empty(0)


def definitions(*, any_length: bool) -> dict[Any, Callable[..., Any]]:
    """By operator: a table for ``ExportedProgram.run_decompositions``, of a single step or of any number of them."""
    ours, aten = torch.ops.statewise, torch.ops.aten
    table: dict[Any, Callable[..., Any]] = {
        ours.rms_norm.default: rms_norm.definition,
        ours.gated_rms_norm.default: gated_rms_norm.definition,
        ours.gelu_tanh.default: _gelu_tanh,
    }
    if not any_length:
        return {
            **table,
            ours.short_convolution.default: _short_convolution,
            ours.selective_scan.default: _selective_scan,
        }
    return {
        **table,
        ours.short_convolution.default: recurrences.short_convolution,
        ours.fft_convolution.default: recurrences.fft_convolution,
        ours.linear_scan.default: recurrences.linear_scan,
        ours.selective_scan.default: recurrences.selective_scan,
        ours.ssd.default: recurrences.ssd,
        ours.diagonal_rank_one.default: recurrences.diagonal_rank_one,
        aten.cummax.default: recurrences.cumulative_maximum,
    }
