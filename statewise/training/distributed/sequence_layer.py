"""How one layer of a model reads this rank's piece: its state from the rank before, its state to the rank behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from statewise.mixers.attention import Attention, ConvolvedAttentionState
from statewise.mixers.attention_state import History
from statewise.models.pooling import Pooling
from statewise.training.distributed.sequence_attention import Places, Ring, SpreadHistory
from statewise.training.distributed.sequence_relay import Line, Relay


def stand_in(mixer: nn.Module, line: Line, places: Places | None, ring: Ring | None, given: Any = None) -> Any:
    """What the mixer is called with as its state, for one call: a relay, or of attention the history that lies with
    the other ranks, where only the state of its short convolution, if it has one, goes from rank to rank."""
    if not isinstance(mixer, Attention):
        return Relay(line, given)
    assert places is not None
    history: History = SpreadHistory(line, places, ring)
    return history if mixer.convolution is None else ConvolvedAttentionState(Relay(line), history)  # type: ignore[arg-type]


def relayed(mixer: nn.Module) -> list[nn.Module]:
    """The module in the mixer that is called with a relay, if there is one.

    For attention it is the convolution alone: its state has to be on its way before the ranks wait for one another to
    fetch the keys.
    """
    if not isinstance(mixer, Attention):
        return [mixer]
    return [] if mixer.convolution is None else [mixer.convolution]


class RelayHooks:
    """Around the forward of a mixer, a short convolution or a pooling: where it is called with a relay for its state,
    it gets the state from the rank before, and the state behind goes on. All other calls pass untouched.

    then: what is done with the outputs at last
    """

    def __init__(self, layer: nn.Module, then: Callable[[Tensor], Tensor] | None = None) -> None:
        self._then = then
        self._relay: Relay | None = None
        self._rest: tuple[Any, Any] = (None, None)
        self._handles = [
            layer.register_forward_pre_hook(self._before, with_kwargs=True),
            layer.register_forward_hook(self._behind),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._relay = args[1] if len(args) > 1 and isinstance(args[1], Relay) else None
        if self._relay is None:
            return None
        return self._relay.begin(args[0], self._state_at_rest(layer, args[0])), kwargs

    def _behind(self, layer: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> Any:
        relay, self._relay = self._relay, None
        if relay is None:
            return None
        y = relay.end(*output)
        return (y if self._then is None else self._then(y)), None

    def _state_at_rest(self, layer: Any, x: Tensor) -> Any:
        """Made once for inputs of a kind, since some mixers work out their whole system for it."""
        key = (len(x), x.device, x.dtype, *{parameter.dtype for parameter in layer.parameters()})
        if self._rest[0] != key:
            options = {"dtype": x.dtype} if isinstance(layer, Pooling) else {}  # a mixer's follows its parameters
            with torch.no_grad():
                self._rest = key, layer.initial_state(len(x), device=x.device, **options)
        return self._rest[1]


@contextmanager
def hooked(mixer: nn.Module) -> Iterator[None]:
    """For one call of a mixer by itself."""
    hooks = [RelayHooks(layer) for layer in relayed(mixer)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def from_last(line: Line, y: Tensor) -> Tensor:
    """The last rank's y on every rank. Backward: the sum of what all ranks ask of it, to the last."""
    return _FromLast.apply(y, line) if torch.is_grad_enabled() else _broadcast(line, y)


def _broadcast(line: Line, y: Tensor) -> Tensor:
    y = y.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(y, group=line.group, group_src=line.size - 1)
    return y


class _FromLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, line: Line) -> Tensor:
        ctx.line = line
        return _broadcast(line, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.line.group)
        return (gradient if ctx.line.is_last else torch.zeros_like(gradient)), None
