"""Signals, states and gradients for the laws, and how two of them are held against each other."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.mixers.base import Mixer


def prepared(mixer: Mixer) -> Mixer:
    """A float64 copy whose parameters all matter: at the usual scale of 0.02 an error in a branch would hide."""
    mixer = copy.deepcopy(mixer).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            fan_in = parameter.shape[-1] if parameter.ndim > 1 else 4
            parameter.add_(torch.randn_like(parameter) / fan_in**0.5)
    return mixer


def signal(mixer: Mixer, batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, mixer.d_model, dtype=torch.float64)


def warm_state(mixer: Mixer, batch: int, length: int = 7) -> Any:
    """The state of rows that have read different numbers of tokens, the last row none; leaves ready for gradients."""
    lengths = torch.tensor([max(0, length - 3 * b) if b < batch - 1 or batch == 1 else 0 for b in range(batch)])
    with torch.no_grad():
        _, state = mixer(signal(mixer, batch, length), mixer.initial_state(batch), lengths=lengths)
    return tracked(state)


def states(mixer: Mixer, batch: int) -> Iterator[Any]:
    yield tracked(mixer.initial_state(batch))
    yield warm_state(mixer, batch)


def tracked(state: Any) -> Any:
    """A copy of a state whose floating leaves record gradients."""
    return pytree.tree_map(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()), state)


def detached(state: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach(), state)


def rows(state: Any, index: Sequence[int]) -> Any:
    """Some rows of a state, as copies (in the graph, if the state is in one)."""
    return pytree.tree_map(lambda x: x.index_select(0, torch.tensor(index)), state)


def some_times(length: int) -> list[int]:
    """Where to cut: everywhere in a short sequence, at telling places in a long one."""
    if length <= 65:
        return list(range(length + 1))
    near = {t + d for t in (0, 16, 32, 64, 128, 256, length // 2, length) for d in (-1, 0, 1)}
    return sorted(t for t in near if 0 <= t <= length)


def gradients(mixer: Mixer, outputs: Tensor, inputs: Any) -> list[Tensor]:
    """d(outputs . fixed random weights) / d(inputs, parameters), zeros where there is no path."""
    leaves = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
    leaves += [parameter for parameter in mixer.parameters() if parameter.requires_grad]  # a frozen mixer has none
    weights = torch.randn(outputs.shape, dtype=outputs.dtype, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((outputs * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found)]


def same(actual: Any, expected: Any, atol: float, what: str) -> None:
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, e, atol=atol, rtol=atol, msg=lambda message: f"{what}: {message}")


def through(mixer: Mixer, pieces: Sequence[Tensor], state: Any) -> Tensor:
    """The outputs of the pieces, one call each, the state handed on."""
    outputs = []
    for piece in pieces:
        y, state = mixer(piece, state)
        assert y.shape == piece.shape
        assert state is not None
        outputs.append(y)
    return torch.cat(outputs, 1)
