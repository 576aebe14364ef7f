"""From data as they were stored to what a model's first layer reads: part of the model, so you never do it yourself.

Bytes, samples of 16 bits and readings of a sensor go into the model as they are. What training did to them is in the
model's config, and a checkpoint holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.configuration.types import EACH_ONCE, Count, Finite, Natural, OneOf, Positive
from statewise.errors import ConfigError, InputError
from statewise.models.file_input import FilesConfig
from statewise.operators.folding import is_any
from statewise.operators.masks import Masks, mask_time

SCALINGS = ("none", "dataset", "series")
WIDE = (torch.float64, torch.int64, torch.int32, torch.uint32, torch.uint64)  # more digits than float32 has
CONSTANT = 1e-12  # of the mean: a smaller deviation is what rounding leaves of a channel that does not change


@dataclass(frozen=True, kw_only=True)
class InputConfig(Config):
    """What raw numbers are, and what is done to them before a model reads them.

    scaling:       "dataset": x * scale + shift, the same numbers for all rows. "series": each channel of each row gets
                   mean 0 and variance 1 over its own steps; one that does not change becomes zero. "none": as it is
    scale, shift:  of "dataset", one of each for every number of a step
    order:         where the steps of a row are read from, for images whose pixels are permuted; (): in their order
    max_length:    further steps of a row are not read; None: all are
    sampling_rate: steps a second, where the data are a signal; for your information
    files:         how rows come out of the files that the model was trained on; None: they were arrays, or a data set
    """

    scaling: Annotated[str, OneOf(SCALINGS)] = "none"
    scale: tuple[Finite, ...] = ()
    shift: tuple[Finite, ...] = ()
    order: Annotated[tuple[Natural, ...], EACH_ONCE] = ()
    max_length: Count | None = None
    sampling_rate: Positive | None = None
    files: FilesConfig | None = None

    def __post_init__(self) -> None:
        if (self.scaling == "dataset") != bool(self.scale) or len(self.scale) != len(self.shift):
            raise ConfigError(
                f"InputConfig has scaling={self.scaling!r} with {len(self.scale)} scale and {len(self.shift)} shift; "
                'give one of each for every number of a step with "dataset", and none otherwise'
            )
        if self.order and max(self.order) >= len(self.order):
            raise ConfigError(
                f"InputConfig.order has {max(self.order)} among {len(self.order)} places; expected each from 0 to "
                f"{len(self.order) - 1} once"
            )
        if self.order and self.max_length is not None:
            raise ConfigError("InputConfig.order and max_length together would drop steps at random; use one")

    @property
    def whole_rows(self) -> str | None:
        """Why a row cannot be read in pieces; None if it can."""
        if self.scaling == "series":
            return "it scales each row over all steps of the row"
        return "it reads the steps of a row in its own order" if self.order else None

    def in_float32(self) -> Self:
        """The same with scale and shift rounded to float32, as runs of 0.1.0 had them."""
        scale, shift = (tuple(map(float, np.array(part, np.float32))) for part in (self.scale, self.shift))
        return replace(self, scale=scale, shift=shift)


class RawInput(nn.Module):
    """x, of any real dtype -> what the first layer reads.

    Numerics: in float32 for numbers that it holds exactly (bytes, 16 bits, float32), in float64 for wider ones, so that
              nothing is lost of a small change on a large mean; rounded to the parameters' dtype after that.
    """

    scale: Tensor
    shift: Tensor
    order: Tensor

    def __init__(self, config: InputConfig) -> None:
        super().__init__()
        self.config = config
        self._make(torch.get_default_device())

    def _make(self, device: torch.device) -> None:
        """The config's numbers as tables, which no file of tensors holds."""
        for name in ("scale", "shift"):
            table = torch.tensor(getattr(self.config, name), dtype=widest(device), device=device)
            self.register_buffer(name, table, persistent=False)
        order = torch.tensor(self.config.order, dtype=torch.int64, device=device)
        self.register_buffer("order", order, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What ``nn.Module`` calls for every conversion: the numbers move, and keep all their digits."""
        self._make(fn(self.order).device)
        return self

    def cut(self, x: Tensor, position: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x and lengths without the steps of each row beyond ``max_length``, ``position`` of which are read already."""
        most = self.config.max_length
        if most is None:
            return x, lengths
        if position is None and is_any(x.shape[1]) and lengths is not None:  # cut by the masks alone
            return x, lengths.clamp(max=most)
        if position is None:
            return x[:, :most], None if lengths is None else lengths.clamp(max=most)
        length = torch.full_like(position, x.shape[1]) if lengths is None else lengths
        return x, torch.minimum(length, (most - position).clamp(min=0))

    def forward(self, x: Tensor, masks: Masks, dtype: torch.dtype) -> Tensor:
        """Shapes:  x: (batch, length, d_input)   ->   the same, in ``dtype``
        Errors:  InputError for a row that is not as long as the order is.
        """
        if self.config.order:
            x = self._reordered(x, masks)
        kind = widest(x.device) if x.dtype in WIDE else torch.float32
        x = x.to(kind)
        if self.config.scaling == "dataset":
            x = x * self.scale.to(kind) + self.shift.to(kind)
        elif self.config.scaling == "series":
            scale, shift = own_scale(x, masks)
            x = x * scale.to(kind) + shift.to(kind)
        return x.to(dtype)

    def _reordered(self, x: Tensor, masks: Masks) -> Tensor:
        order, shortest = self.order, x.shape[1]
        if is_any(x.shape[1]):  # rows of another length have no such steps, which the runtime says
            return x.index_select(1, order[torch.arange(x.shape[1], device=x.device)])
        if masks.lengths is not None and not (torch.compiler.is_compiling() or x.is_meta) and len(x):
            shortest = int(masks.lengths.min())
        if x.shape[1] != len(order) or shortest != len(order):
            raise InputError(
                f"a row of x has {min(shortest, x.shape[1])} steps; this model reads rows of {len(order)} in an order "
                f"of its own; give all {len(order)} in the order in which they are stored"
            )
        return x.index_select(1, order)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating dtype that the device computes in."""
    return torch.float32 if device.type == "mps" else torch.float64


def own_scale(x: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """scale and shift (batch, 1, d_input) float64 that give each channel of each row mean 0 and variance 1 over its own
    steps; both are 0 for a channel that does not change.
    """
    n = x.shape[1] if masks.lengths is None else masks.lengths[:, None, None].clamp(min=1)
    x = mask_time(x.to(widest(x.device)), masks.valid)
    mean = x.sum(1, keepdim=True) / n
    deviation = (mask_time((x - mean).square(), masks.valid).sum(1, keepdim=True) / n).sqrt()
    flat = deviation <= CONSTANT * mean.abs()
    scale = (~flat) / deviation.masked_fill(flat, 1.0)
    return scale, -mean * scale


def require_fits(name: str, config: InputConfig, d_input: int | None, pooling: str | None) -> None:
    """Errors:  ConfigError unless a model ``name`` of these fields can have this input."""
    if d_input is None:
        raise ConfigError(f"{name}.input is for numbers, but the model reads tokens; leave it out")
    if config.scale and len(config.scale) != d_input:
        raise ConfigError(
            f"{name}.input scales {len(config.scale)} numbers a step, but d_input={d_input}; give one scale for each"
        )
    if pooling is None and (config.max_length is not None or config.order):
        raise ConfigError(
            f"{name}.input cuts or reorders rows, so there is no output for each of their steps; set a pooling"
        )
