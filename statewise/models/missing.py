"""Numbers that a model of whole sequences reads, and that are missing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.batching import all_finite, whole
from statewise.models.block import Block
from statewise.operators.masks import Masks


def read_missing(x: Tensor, masks: Masks, blocks: Sequence[Block]) -> tuple[Tensor, Masks]:
    """x (batch, length, d), zero in padding, with zeros at steps that hold NaN, which ``masks.observed`` then names.

    Nothing else in the model says that such a step is missing. So all layers have to know of gaps, as filters do: any
    other would carry what it reads there, an invented number, to other steps.

    Cost:    one wait for the device; in compiled code none, and no errors.
    Errors:  InputError for infinity, and for NaN where a layer knows of no gaps.
    """
    compiling = torch.compiler.is_compiling() or x.is_meta
    if not compiling and all_finite(x):
        return x, masks
    other = next((block.mixer for block in blocks if not block.mixer.takes_missing), None)
    if not compiling and bool(whole(x.isinf()).any()):
        raise InputError("x holds infinity; use NaN for a missing number")
    if other is None:
        missing = x.isnan().any(-1)
        return x.masked_fill(missing.unsqueeze(-1), 0), masks._replace(observed=~missing)
    if not compiling:
        raise InputError(
            f"x holds NaN, and {type(other).__name__} layers know of no gaps; fill them, or use KalmanConfig "
            "layers alone"
        )
    return x, masks
