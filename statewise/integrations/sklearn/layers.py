"""Layers by a word or a config, sized for the rows that they are to read."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from statewise.configuration.words import suggest
from statewise.errors import ConfigError
from statewise.mixers.base import MixerConfig
from statewise.mixers.cross_attention import CrossAttentionConfig, LinearCrossAttentionConfig
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.models.block import BlockConfig
from statewise.models.registry import CONFIG_TYPES
from statewise.models.shared_transformer import SharedTransformerConfig
from statewise.training.presets.labelled import Size

# But for those that are made of other mixers, which no name says, and those that read a second sequence
_NOT_BY_NAME = (ParallelMixersConfig, SharedTransformerConfig, CrossAttentionConfig, LinearCrossAttentionConfig)
MIXERS = {
    name.removesuffix("Config").lower(): cls
    for name, cls in CONFIG_TYPES.items()
    if issubclass(cls, MixerConfig) and cls not in _NOT_BY_NAME
}


def layers_for(mixer: Any, d_model: Any, n_layers: Any, dropout: float, size: Size | None = None) -> list[BlockConfig]:
    """So many layers. A mixer by its name suits rows of this size; a config is taken as it is.

    mixer:   a name in ``MIXERS``, a MixerConfig, or a BlockConfig, which has a dropout of its own

    Errors:  ConfigError for anything else, and for no layers.

    >>> layers_for("s4d", 64, 2, 0.1, Size(rows=100, longest=64, shortest=64))[1].mixer.dt_range
    (0.01, 0.1)
    """
    for name, value in (("d_model", d_model), ("n_layers", n_layers)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}={value!r}; expected an integer of at least 1")
    if isinstance(mixer, str):
        mixer = _by_name(mixer, int(d_model), size)
    if isinstance(mixer, MixerConfig):
        mixer = BlockConfig(mixer=mixer, norm="layer", dropout=dropout)
    if not isinstance(mixer, BlockConfig):
        raise ConfigError(f"mixer={mixer!r}; give a name, such as 's4d' or 'mamba2', a MixerConfig or a BlockConfig")
    return [mixer] * int(n_layers)


def _by_name(name: str, d_model: int, size: Size | None) -> MixerConfig:
    if name.lower() not in MIXERS:
        hint = suggest(name.lower(), list(MIXERS), "Mixers", all_by="docs/layers.md")
        raise ConfigError(f"mixer={name!r} is unknown; {hint}")
    kind = MIXERS[name.lower()]
    fitting: dict[str, Any] = {"n_heads": math.gcd(d_model, 4)}
    if size is not None:
        fitting |= {"dt_range": size.dt_range, "theta": float(size.steps)}
    known = {field.name: field for field in fields(kind)}
    needed = {name: value for name, value in fitting.items() if name == "dt_range" or _is_required(known.get(name))}
    head, expand = (getattr(known.get(field), "default", 1) for field in ("d_head", "expand"))
    if isinstance(head, int) and d_model * expand % head:  # a model narrower than a usual head
        needed["d_head"] = math.gcd(d_model * expand, head)
    return kind(**{name: value for name, value in needed.items() if name in known})


def _is_required(field: Any) -> bool:
    return field is not None and field.default is MISSING and field.default_factory is MISSING
