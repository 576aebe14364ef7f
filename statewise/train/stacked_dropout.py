"""Dropout of several models at once, each from the random numbers of its own seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.train.snapshot import capture_generators, restore_generators, set_torch_generators, torch_generators


class RandomNumbers:
    """The states of all generators that a run draws from, kept apart while other runs draw from theirs."""

    def __init__(self, device: torch.device) -> None:
        """Takes them as they are now."""
        self.device = device
        self.tensors, self.data = capture_generators(device)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the global generators are this run's; what is drawn is remembered."""
        restore_generators(self.tensors, self.data, self.device)
        yield
        self.tensors, self.data = capture_generators(self.device)

    def noise_like(self, x: Tensor, p: float) -> Tensor:
        """What dropout multiplies x by: 0 or 1 / (1 - p)."""
        set_torch_generators(self.tensors, self.device)
        noise = F.dropout(torch.ones_like(x), p, training=True)
        self.tensors |= torch_generators(self.device)
        return noise


_drawn_from: Sequence[RandomNumbers] = ()  # for the operator, which takes tensors and numbers only


@contextmanager
def drawing_from(numbers: Sequence[RandomNumbers]) -> Iterator[None]:
    """Inside, the i-th of the models that vmap runs draws from the i-th of these; without vmap, one from the first."""
    global _drawn_from
    before, _drawn_from = _drawn_from, numbers
    try:
        yield
    finally:
        _drawn_from = before


def _noise_of_each(info: Any, in_dims: tuple[int | None, ...], x: Tensor, p: float) -> tuple[Tensor, int]:
    assert in_dims[0] is not None
    assert len(_drawn_from) == info.batch_size
    with torch._C._ExcludeDispatchKeyGuard(_VMAP):  # which has one generator for all, and refuses in error mode
        return torch.stack([numbers.noise_like(one, p) for numbers, one in zip(_drawn_from, x.unbind(in_dims[0]))]), 0


_VMAP = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)
torch.library.define("statewise::stacked_dropout_noise", "(Tensor x, float p) -> Tensor")
torch.library.impl("statewise::stacked_dropout_noise", "default", lambda x, p: _drawn_from[0].noise_like(x, p))
torch.library.register_vmap("statewise::stacked_dropout_noise", _noise_of_each)


class StackedDropout(nn.Module):
    """``nn.Dropout`` within vmap, in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0.0:
            return x
        noise: Tensor = torch.ops.statewise.stacked_dropout_noise(x.detach(), self.p)
        return x * noise


def replace_dropout(model: nn.Module) -> None:
    """Puts :class:`StackedDropout` in the place of every ``nn.Dropout``."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, StackedDropout(child.p))
