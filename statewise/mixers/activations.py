"""Pointwise nonlinearities by the names that configs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.gelu_tanh import gelu_tanh

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": F.gelu,
        "gelu_tanh": gelu_tanh,  # functions of a module: what holds them must pickle
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
    }
)
