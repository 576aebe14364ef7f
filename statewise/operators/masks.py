"""What ``lengths`` and ``starts`` mean, computed once and shared by all forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.batching import whole
from statewise.kernels.exact import is_exact


@dataclass(eq=False)
class Handed:
    """What a layer leaves for the layers behind it within one call of a model: the one thing here that is written to,
    so that a layer's call stays y, state = layer(x, state)."""

    values: Tensor | None = None  # (batch, length, d_model) of RWKV-7, for the layers that mix theirs with them


class Masks(NamedTuple):
    """Which steps are real and where documents begin; every field is None where the caller gave nothing.

    A step that is not real is the identity on the state; a start counts only on a real step. At a step that is real and
    not observed time passes, but its input says nothing: a model that knows of gaps says so here. Filters act on it,
    and no other layer.
    """

    valid: Tensor | None = None  # (batch, length) bool
    starts: Tensor | None = None  # (batch, length) bool, False beyond the row's length
    segments: Tensor | None = None  # (batch, length) int64, how many documents began up to here
    lengths: Tensor | None = None  # (batch,) int64
    observed: Tensor | None = None  # (batch, length) bool
    embedded: Tensor | None = None  # (batch, length, d_model), what the model's embedding gave, for layers that read it
    handed: Handed | None = None  # of this call, where layers read what others leave


NO_MASKS = Masks()
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def build_masks(x: Tensor, lengths: Tensor | None, starts: Tensor | None) -> Masks:
    """Check ``lengths`` (batch,) and ``starts`` (batch, length), and derive the masks of x (batch, length, ...).

    Cost:    a wait for the device, which has to tell what they hold. So it is done once where a call of a model, a
             layer, a mixer or an operator begins, and what it calls is given the masks.
    Errors:  InputError for anything but a tensor, other shapes and dtypes, another device, lengths out of range.
    """
    if lengths is None and starts is None:
        return NO_MASKS
    batch, length = x.shape[:2]
    for name, given in (("lengths", lengths), ("starts", starts)):
        if given is not None and not isinstance(given, Tensor):
            raise InputError(f"{name} must be a tensor, got {type(given).__name__}; use torch.as_tensor({name})")
        if given is not None and (given.device != x.device or given.layout != torch.strided):
            raise InputError(
                f"{name} must be on {x.device}, where the input is, and {torch.strided}; got {given.device}, "
                f"{given.layout}"
            )
    valid = None
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.dtype not in INTEGERS:
            raise InputError(
                f"lengths must be integers of shape ({batch},), got {lengths.dtype} {tuple(lengths.shape)}"
            )
        if not torch.compiler.is_compiling() and batch and not lengths.is_meta:
            low, high = torch.stack(whole(lengths).aminmax()).tolist()
            if low < 0 or high > length:
                raise InputError(f"lengths must lie in 0..{length} for an input of length {length}, got {low}..{high}")
        lengths = lengths.to(torch.int64)
        valid = length_masks(length, lengths).valid
    if starts is None:
        return Masks(valid=valid, lengths=lengths)
    if starts.shape != (batch, length) or starts.dtype != torch.bool:
        raise InputError(f"starts must be bool of shape ({batch}, {length}), got {starts.dtype} {tuple(starts.shape)}")
    if valid is not None:
        starts = starts & valid
    if starts.device.type == "cpu" and not torch.compiler.is_compiling() and not whole(starts).any():
        return Masks(valid=valid, lengths=lengths)  # no document begins: spares every form its segment masks
    return Masks(valid, starts, starts.cumsum(1), lengths)


def length_masks(length: int, lengths: Tensor) -> Masks:
    """Those of ``lengths`` (batch,) int64 that are known to lie in 0..length."""
    return Masks(valid=torch.arange(length, device=lengths.device) < lengths[:, None], lengths=lengths)


def mask_time(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (batch, length, ...) with zeros where a step is not real; NaN there is gone, not multiplied by zero."""
    if valid is None:
        return as_masked(x)
    return x.masked_fill(~valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), 0)


def as_masked(x: Tensor) -> Tensor:
    """x itself. In exact mode it has the node in the graph that a mask would have been.

    Autograd adds up what the readers of a tensor send back. With a mask, those behind it are added up first, and then
    those beside it. So where nothing is masked they are kept together, too.
    """
    return x.view_as(x) if is_exact() and x.requires_grad and torch.is_grad_enabled() else x
