"""Tests on another device: what they make without naming one is made there."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """As ``torch.device(name)`` as a context; but what a generator of the CPU draws is drawn there, and then moved."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.device = torch.device(name)
        self.n_moved = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        self.n_moved += 1
        if kwargs.get("generator") is not None:
            return function(*args, **kwargs).to(self.device)
        return function(*args, **{**kwargs, "device": self.device})
