"""What every model is: built from a frozen config, with layers, a state, and parameters that can be drawn again."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewise.configuration import Config
from statewise.errors import ConfigError, InputError
from statewise.kernels.exact.owner import MayBeExact, exactly
from statewise.mixers.base import Freezable
from statewise.models.block import Block, BlockConfig
from statewise.models.freezing import freeze
from statewise.models.shapes import by_number
from statewise.operators.masks import Handed, Masks

# What a model is asked for, and what ``exact = True`` makes exact.
_COMPUTES = {"forward", "features", "embed", "loss", "scaled_losses", "scaled_forecasts", "log_likelihood"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """A frozen description of a model. Its class is named in ``registry.CONFIG_TYPES``, and by "type" in JSON."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in cls.__dict__:
            cls.build = by_number(cls.build)  # type: ignore[assignment, method-assign]

    @abc.abstractmethod
    def build(self) -> Model:
        """The model, its parameters drawn from torch's global generator.

        Errors:  ConfigError for sizes that do not fit each other; TooLargeError, before anything is allocated, where
                 there is less memory on the default device than its parameters need (see models/shapes.py).
        """

    def in_full(self) -> ModelConfig:
        """The same model with nothing abbreviated, such as a bare mixer for a block: compare these by field."""
        return self


class Model(Freezable, MayBeExact, abc.ABC):
    """A model that can be trained, saved, loaded and described, whatever it reads and returns.

    You call it as everything here: ``y, state = model(x, state, lengths=..., starts=...)``. What x and y are depends
    on the model. With ``exact = True`` all of it is in exact mode (:func:`statewise.exact`).
    """

    config: ModelConfig
    gradient_checkpointing: bool = False  # set True to recompute each block in the backward pass

    layers: nn.ModuleList

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _COMPUTES & vars(cls).keys():
            setattr(cls, name, exactly(vars(cls)[name]))

    @property
    def blocks(self) -> Sequence[Block]:
        """The layers, in order, typed."""
        return cast("list[Block]", list(self.layers))

    def _through(self, x: Tensor, states: Sequence[Any] | None, masks: Masks) -> tuple[Tensor, tuple[Any, ...]]:
        """x as the layers read it one after the other, and the states behind them. states: None for none."""
        if any(block.reads_values for block in self.blocks):
            masks = masks._replace(handed=Handed())
        after = []
        for i, layer in enumerate(self.blocks):
            state = None if states is None else states[i]
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x, state = checkpoint(layer, x, state, masks=masks, use_reentrant=False)
            else:
                x, state = layer(x, state, masks=masks)
            after.append(state)
        return x, tuple(after)

    def _reset_blocks(self) -> None:
        """Draws the layers' parameters again; branches into the residual stream are scaled by 1/sqrt(their number)."""
        scale = sum(block.config.n_branches for block in self.blocks) ** -0.5
        for block in self.blocks:
            block.reset_parameters(scale)

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Draw all parameters again, from torch's global generator."""

    @abc.abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """The state before the first input.

        Errors: InputError where a layer reads in both directions and so has none.
        """

    def freeze(self) -> Self:
        """A copy for inference that shares the parameters; see :func:`statewise.models.freezing.freeze`."""
        return freeze(self)


def build_blocks(blocks: Sequence[BlockConfig], d_model: int) -> nn.ModuleList:
    """The layers of a model.

    Errors:  ConfigError for one that reads the values of a layer before it, where none gives them.
    """
    built = [block.build(d_model) for block in blocks]
    for i, block in enumerate(built):
        if block.reads_values and not any(before.mixer.gives_values for before in built[:i]):
            raise ConfigError(
                f"layers[{i}] mixes its values with those of a layer before it, and none gives any; set "
                "value_rank=None for the first RWKV-7 layer"
            )
    return nn.ModuleList(built)


def advance(position: Tensor, x: Tensor, masks: Masks) -> Tensor:
    """The position after these steps: counted from the last start, if there was one, and only over real steps."""
    length = x.shape[1]
    end = torch.full_like(position, length) if masks.lengths is None else masks.lengths
    if masks.starts is None:
        return position + end
    time = torch.arange(length, device=x.device)
    last = torch.where(masks.starts, time, -1).amax(1) if length else torch.full_like(end, -1)
    return torch.where(last >= 0, end - last, position + end)


def check_device(x: Tensor, weight: Tensor, name: str) -> None:
    """Errors:  InputError unless a model's input is where its parameters are."""
    if x.device != weight.device or x.layout != torch.strided:
        raise InputError(
            f"{name} must be on {weight.device}, where the model is, and {torch.strided}; got {x.device}, {x.layout}"
        )


def check_layers(name: str, states: Any, n_layers: int) -> None:
    """Errors:  InputError unless there are ``n_layers`` states. Each layer checks its own."""
    if not isinstance(states, tuple) or len(states) != n_layers:
        given = f"{len(states)} layers" if isinstance(states, tuple) else f"a {type(states).__name__}"
        raise InputError(
            f"state is for {given}; this {name} has {n_layers} layers; begin with model.initial_state(batch)"
        )
