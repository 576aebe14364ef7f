"""What configs of ours may say that only the formats of ``hybrids`` have a place for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from statewise.configuration.base import defaults
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EXTRAS: Mapping[type, tuple[str, ...]] = {
    BlockConfig: ("branch_scale",),
    AttentionConfig: ("qk_norm", "gate"),
    LanguageModelConfig: ("embedding_scale", "embedding_norm", "logit_scale", "logit_cap"),
    MLPConfig: ("gate_scale", "output_scale"),
    Mamba2Config: ("n_heads", "norm", "output_bias", "projection_scales"),
    MambaConfig: ("norm_weights",),
}


def refuse_extras(config: Any, where: str) -> None:
    """CheckpointError for the first of them in a config, or in one inside it."""
    if isinstance(config, tuple):
        for part in config:
            refuse_extras(part, where)
    if not is_dataclass(config) or isinstance(config, type):
        return
    for name in EXTRAS.get(type(config), ()):
        value = getattr(config, name)
        if value != defaults(type(config))[name]:
            raise CheckpointError(f"{where} has no {type(config).__name__}.{name}, which this model has as {value!r}")
    if isinstance(config, MLPConfig) and config.activation == "relu2":
        raise CheckpointError(f"{where} has no activation relu2, which an MLP of this model has")
    if isinstance(config, (BlockConfig, LanguageModelConfig)) and config.norm == "rms_offset":
        raise CheckpointError(f"{where} has no norm='rms_offset', a weight stored less 1, which this model has")
    if isinstance(config, MoEConfig):
        raise CheckpointError(f"{where} has no mixture of experts, which this model has")
    if isinstance(config, BlockConfig) and (config.mixer is None or config.placement == "after"):
        raise CheckpointError(f"{where} has no block with mixer={config.mixer!r}, placement={config.placement!r}")
    for field in fields(config):
        refuse_extras(getattr(config, field.name), where)
