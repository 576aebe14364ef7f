"""Pointwise nonlinearities by the names that configs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.gelu_tanh import gelu_tanh


def relu2(x: Tensor) -> Tensor:
    """relu(x)^2 (So et al. 2021, Primer, arXiv:2109.08668, sec. 4.1)."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": F.gelu,
        "gelu_tanh": gelu_tanh,  # functions of a module: what holds them must pickle
        "relu": F.relu,
        "relu2": relu2,
        "silu": F.silu,
        "tanh": torch.tanh,
    }
)
