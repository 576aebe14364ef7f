"""Pointwise nonlinearities by the names that configs use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),  # no lambda: modules hold it, and must pickle
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
    }
)
