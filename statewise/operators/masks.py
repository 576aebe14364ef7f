"""What ``lengths`` and ``starts`` mean, worked out once for all forms."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.batching import whole


class Masks(NamedTuple):
    """Which steps are real and where documents begin; every field is None where the caller gave nothing.

    A step that is not real is the identity on the state; a start counts only on a real step.
    """

    valid: Tensor | None = None  # (batch, length) bool
    starts: Tensor | None = None  # (batch, length) bool, False beyond the row's length
    segments: Tensor | None = None  # (batch, length) int64, how many documents began up to here
    lengths: Tensor | None = None  # (batch,) int64


NO_MASKS = Masks()


def build_masks(batch: int, length: int, lengths: Tensor | None, starts: Tensor | None) -> Masks:
    """Check ``lengths`` (batch,) and ``starts`` (batch, length) and derive the masks from them."""
    valid = None
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise InputError(
                f"lengths must be integers of shape ({batch},), got {lengths.dtype} {tuple(lengths.shape)}"
            )
        if not torch.compiler.is_compiling() and batch and not lengths.is_meta:
            low, high = int(whole(lengths).min()), int(whole(lengths).max())
            if low < 0 or high > length:
                raise InputError(f"lengths must lie in 0..{length} for an input of length {length}, got {low}..{high}")
        valid = torch.arange(length, device=lengths.device) < lengths[:, None]
    if starts is None:
        return Masks(valid=valid, lengths=lengths)
    if starts.shape != (batch, length) or starts.dtype != torch.bool:
        raise InputError(f"starts must be bool of shape ({batch}, {length}), got {starts.dtype} {tuple(starts.shape)}")
    if valid is not None:
        starts = starts & valid
    if starts.device.type == "cpu" and not torch.compiler.is_compiling() and not whole(starts).any():
        return Masks(valid=valid, lengths=lengths)  # no document begins: spares every form its segment masks
    return Masks(valid, starts, starts.cumsum(1), lengths)


def mask_time(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (batch, length, ...) with zeros where a step is not real; NaN there is gone, not multiplied by zero."""
    if valid is None:
        return x
    return x.masked_fill(~valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), 0)
