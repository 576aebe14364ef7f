"""Layers of two kinds in one model: most of one, a few of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from statewise.errors import ConfigError
from statewise.mixers.base import MixerConfig
from statewise.models.block import BlockConfig

LayerT = TypeVar("LayerT", bound=BlockConfig | MixerConfig)
OtherT = TypeVar("OtherT", bound=BlockConfig | MixerConfig)


def hybrid_layers(layer: LayerT, other: OtherT, *, n_layers: int, at: Sequence[int]) -> tuple[LayerT | OtherT, ...]:
    """``n_layers`` times ``layer``, with ``other`` at the positions ``at``, counted from 0.

    Errors:  ConfigError for a position that is not in 0 ... n_layers - 1 or is there twice, and for n_layers < 1.

    >>> from statewise.mixers.attention import AttentionConfig
    >>> from statewise.mixers.h3 import H3Config
    >>> [type(layer).__name__ for layer in hybrid_layers(H3Config(), AttentionConfig(n_heads=4), n_layers=3, at=(1,))]
    ['H3Config', 'AttentionConfig', 'H3Config']
    """
    if not _is_integer(n_layers) or n_layers < 1:
        raise ConfigError(f"hybrid_layers: n_layers={n_layers!r}; expected an integer of at least 1")
    positions = list(at)
    for i, position in enumerate(positions):
        if not _is_integer(position) or not 0 <= position < n_layers:
            raise ConfigError(
                f"hybrid_layers: position {position!r} in at={positions}; positions count from 0, "
                f"so that those of {n_layers} layers are 0 to {n_layers - 1}"
            )
        if position in positions[:i]:
            raise ConfigError(f"hybrid_layers: position {position} is there twice in at={positions}; name it once")
    return tuple(other if i in positions else layer for i in range(n_layers))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
