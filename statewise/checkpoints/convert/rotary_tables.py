"""The tables of rotary frequencies that files of others hold: computed again here, so they must be the usual ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from statewise.errors import CheckpointError


def frequencies(d_rotary: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The turn of each pair of features from one position to the next."""
    pair = torch.arange(0, d_rotary, 2, dtype=dtype)
    return 1.0 / base ** (pair / d_rotary)


def check_frequencies(name: str, tensors: Mapping[str, Tensor], d_rotary: int, base: float, where: str) -> None:
    """Errors:  CheckpointError unless the table, if it is there, is the one that we compute."""
    if name not in tensors:
        return
    found, expected = tensors[name].double(), frequencies(d_rotary, base, torch.float64)
    # files may hold it in half precision
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=2**-7, atol=2**-14):
        raise CheckpointError(
            f"{where}: {name} is not the table of {d_rotary} rotary features with base "
            f"{base:g}, the only one that the published models have"
        )
