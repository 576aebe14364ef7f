"""Layers of two kinds in one model: most of one, a few of another."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from statewise.errors import ConfigError
from statewise.mixers.base import MixerConfig
from statewise.models.block import BlockConfig

LayerT = TypeVar("LayerT", bound=BlockConfig | MixerConfig)
OtherT = TypeVar("OtherT", bound=BlockConfig | MixerConfig)


def hybrid_layers(layer: LayerT, other: OtherT, *, n_layers: int, at: Sequence[int]) -> tuple[LayerT | OtherT, ...]:
    """``n_layers`` times ``layer``, with ``other`` at the positions ``at``, counted from 0.

    Errors:  ConfigError for a position that is not in 0 ... n_layers - 1 or is there twice, for n_layers < 1, and for a
             layer that is not a config.

    >>> from statewise.mixers.attention import AttentionConfig
    >>> from statewise.mixers.h3 import H3Config
    >>> [type(layer).__name__ for layer in hybrid_layers(H3Config(), AttentionConfig(n_heads=4), n_layers=3, at=(1,))]
    ['H3Config', 'AttentionConfig', 'H3Config']
    """
    if not _is_integer(n_layers) or n_layers < 1:
        raise ConfigError(f"hybrid_layers: n_layers={n_layers!r}; expected an integer of at least 1")
    for name, value in (("layer", layer), ("other", other)):
        if not isinstance(value, (BlockConfig, MixerConfig)):
            raise ConfigError(
                f"hybrid_layers: {name} is a {type(value).__name__}; expected a BlockConfig or a mixer's config"
            )
    if isinstance(at, str) or not isinstance(at, Iterable):
        raise ConfigError(f"hybrid_layers: at={at!r}; expected a sequence of positions, such as at=(1, 3)")
    positions = [_as_integer(position) for position in at]
    for i, position in enumerate(positions):
        if not _is_integer(position) or not 0 <= position < n_layers:
            raise ConfigError(
                f"hybrid_layers: position {position!r} in at={positions}; positions count from 0, "
                f"so that those of {n_layers} layers are 0 to {n_layers - 1}"
            )
        if position in positions[:i]:
            raise ConfigError(f"hybrid_layers: position {position} appears twice in at={positions}; name it once")
    return tuple(other if i in positions else layer for i in range(n_layers))


def _as_integer(value: Any) -> Any:
    """A NumPy integer as Python's; anything else, and a bool, unchanged."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
