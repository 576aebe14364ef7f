"""Layers and models as ordinary PyTorch modules: x goes in, and y alone comes out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from statewise.errors import ConfigError, InputError
from statewise.mixers.base import Layer, MixerConfig
from statewise.models.base import Model
from statewise.models.block import BlockConfig


class OutputAlone(nn.Module):
    """What :func:`as_layer` makes. The layer or model is ``layer``, and its parameters are named ``layer....``."""

    def __init__(self, layer: Layer | Model) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """y of a call from rest. ``options`` are the layer's, such as ``lengths`` and ``starts``.

        Shapes:  a mixer's and a block's: (batch, length, d_model) -> the same; a model's: as it says
        Errors:  InputError for a state, and as the layer's own.
        """
        if "state" in options:
            raise InputError("as_layer returns y alone, so it takes no state; to carry a state, call .layer")
        y: Tensor = self.layer(x, **options)[0]
        return y


def as_layer(layer: Layer | Model | MixerConfig | BlockConfig, d_model: int | None = None) -> OutputAlone:
    """A mixer, a block or a model as a module whose call gives y alone, for ``nn.Sequential`` and code like it.

    Every call begins from rest. The layer stays reachable as ``.layer``: ``y, state = module.layer(x, state)``.

    layer:   a module, or the config of a mixer or a block, which is built for the width ``d_model``

    Errors:  ConfigError for a config without a width; InputError for anything else.

    >>> import torch, statewise as sw
    >>> from torch import nn
    >>> mixer = sw.as_layer(sw.Mamba2Config(d_state=16, d_head=16), 64)
    >>> net = nn.Sequential(nn.Linear(3, 64), mixer, nn.Linear(64, 2))
    >>> net(torch.randn(8, 100, 3)).shape
    torch.Size([8, 100, 2])
    """
    if isinstance(layer, (MixerConfig, BlockConfig)):
        name = type(layer).__name__
        if d_model is None:
            raise ConfigError(f"as_layer needs the width of a {name}; give as_layer(config, d_model), or a built layer")
        return OutputAlone(layer.build(d_model))
    if not isinstance(layer, (Layer, Model)):
        raise InputError(
            f"as_layer takes a mixer, a block, a model, or the config of a mixer or a block; got {_name(layer)}"
        )
    if d_model is not None:
        raise InputError(f"as_layer(layer, d_model={d_model}): a built {_name(layer)} has its width; leave d_model out")
    return OutputAlone(layer)


def _name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
