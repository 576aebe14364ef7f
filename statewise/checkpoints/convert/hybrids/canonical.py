"""When two configs of ours mean the same model: defaults written out, and without what only training asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from statewise.configuration.base import defaults
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.channel_mix import ChannelMixConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.mixers.head_widths import head_widths
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.mlstm import MLSTMConfig
from statewise.mixers.rg_lru import RGLRUConfig
from statewise.mixers.rwkv7 import RWKV7Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

DIGITS = 12  # of a number that a file has in another form, as a divisor

# Which fields say nothing of the outputs: of initialisation, of training, of how it is computed
SILENT: Mapping[type, tuple[str, ...]] = {
    AttentionConfig: ("dropout", "weight_std"),
    GatedDeltaNetConfig: ("a_range", "dt_range", "dt_floor", "chunk_length"),
    KDAConfig: ("a_range", "dt_range", "dt_floor", "chunk_length"),
    LatentAttentionConfig: ("dropout", "weight_std"),
    MLSTMConfig: ("chunk_length",),
    RGLRUConfig: ("a_range",),
    RWKV7Config: ("chunk_length",),
    BlockConfig: ("dropout", "tied_dropout"),
    LanguageModelConfig: ("embedding_dropout", "embedding_std"),
    MLPConfig: ("weight_std",),
    Mamba2Config: ("a_range", "dt_range", "dt_floor", "chunk_length"),
    MambaConfig: ("dt_range", "dt_floor"),
    MoEConfig: ("weight_std",),
}


def explicit(config: Any, d_model: int) -> Any:
    """The same config with each default that depends on the width written out, also in the configs inside it."""
    changed = {field.name: _inside(getattr(config, field.name), d_model) for field in fields(config)}
    config = replace(config, **changed)
    own = EXPLICIT.get(type(config))
    return config if own is None else replace(config, **own(config, d_model))


def essential(config: Any) -> Any:
    """The same config without what says nothing of the outputs, and with numbers to ``DIGITS`` digits."""
    if isinstance(config, tuple):
        return tuple(map(essential, config))
    if isinstance(config, float):
        return float(f"{config:.{DIGITS}g}")
    if not is_dataclass(config) or isinstance(config, type):
        return config
    silent = SILENT.get(type(config), ())
    kept = {field.name: essential(getattr(config, field.name)) for field in fields(config)}
    return replace(config, **kept | {name: defaults(type(config))[name] for name in silent})


def _inside(value: Any, d_model: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_inside(part, d_model) for part in value)
    return explicit(value, d_model) if is_dataclass(value) and not isinstance(value, type) else value


def _attention(config: AttentionConfig, d_model: int) -> dict[str, Any]:
    d_head = config.head_width(d_model)
    rotary = config.positions == "rotary"
    return {
        "d_head": d_head,
        "n_kv_heads": config.n_heads if config.n_kv_heads is None else config.n_kv_heads,
        "scale": config.scale_of(d_head),
        "output_bias": config.bias if config.output_bias is None else config.output_bias,
        "d_rotary": config.rotary_width(d_head) if rotary else None,
        "rotary_base": config.rotary_base if rotary else defaults(AttentionConfig)["rotary_base"],
        "qk_norm_eps": defaults(AttentionConfig)["qk_norm_eps"] if config.qk_norm is None else config.qk_norm_eps,
    }


def _delta(config: GatedDeltaNetConfig, d_model: int) -> dict[str, Any]:
    return {"n_key_heads": config.n_heads if config.n_key_heads is None else config.n_key_heads}


def _kda(config: KDAConfig, d_model: int) -> dict[str, Any]:
    return {"rank": config.d_value if config.rank is None else config.rank}


def _mlstm(config: MLSTMConfig, d_model: int) -> dict[str, Any]:
    return dict(zip(("d_key", "d_value"), head_widths(config, d_model)))


def _rg_lru(config: RGLRUConfig, d_model: int) -> dict[str, Any]:
    return {"d_inner": d_model if config.d_inner is None else config.d_inner}


def _mamba2(config: Mamba2Config, d_model: int) -> dict[str, Any]:
    groups = config.n_groups if config.norm_groups is None else config.norm_groups
    eps = config.norm_eps if config.norm else defaults(Mamba2Config)["norm_eps"]
    return {
        "n_heads": config.heads(d_model),
        "expand": defaults(Mamba2Config)["expand"],
        "norm_groups": groups if config.norm else None,
        "output_bias": config.bias if config.output_bias is None else config.output_bias,
        "projection_scales": None if set(config.projection_scales or (1.0,)) == {1.0} else config.projection_scales,
        "norm_eps": eps,
    }


def _mamba(config: MambaConfig, d_model: int) -> dict[str, Any]:
    eps = config.norm_eps if config.norm_dt_b_c else defaults(MambaConfig)["norm_eps"]
    return {"dt_rank": -(-d_model // 16) if config.dt_rank is None else config.dt_rank, "norm_eps": eps}


def _channel_mix(config: ChannelMixConfig, d_model: int) -> dict[str, Any]:
    return {"expand": config.hidden_width(d_model) / d_model}


def _mlp(config: MLPConfig, d_model: int) -> dict[str, Any]:
    return {"expand": config.hidden_width(d_model) / d_model, "multiple_of": 1}


def _moe(config: MoEConfig, d_model: int) -> dict[str, Any]:
    return {"expand": config.hidden_width(d_model) / d_model}


EXPLICIT: Mapping[type, Callable[[Any, int], dict[str, Any]]] = {
    AttentionConfig: _attention,
    ChannelMixConfig: _channel_mix,
    GatedDeltaNetConfig: _delta,
    KDAConfig: _kda,
    MLSTMConfig: _mlstm,
    RGLRUConfig: _rg_lru,
    MLPConfig: _mlp,
    Mamba2Config: _mamba2,
    MambaConfig: _mamba,
    MoEConfig: _moe,
}
