"""Parts and kinds of layers that several families have alike: the rows of their tables.

own: what a family says otherwise, or more: ours -> a field of theirs, a part, or its only value. Numbers are that
library's where a file does not say them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.checkpoints.convert.entries import Entry
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import DT_LIMIT, WHERE, activation, expand_back, inner_width
from statewise.checkpoints.convert.hybrids.family import Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import Table, gated_mlp, mamba2, separate_attention
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

N_HEADS = 128  # of Mamba-2
GATED_MAPS = gated_mlp()


def each(mixers: Mapping[str, Part], mlps: Mapping[str, Part], norms: tuple[str, str]) -> dict[str, Kind]:
    """A kind of block for each mixer with each MLP, by both names together."""
    return {name + more: Kind(mixer, mlp, norms) for name, mixer in mixers.items() for more, mlp in mlps.items()}


# -- mixers ------------------------------------------------------------------------------------------------------------
def attention(
    name: str, n_heads: int, n_kv_heads: int | None, table: Table | None = separate_attention, **own: Any
) -> Part:
    """Attention by the names that most have."""
    fields = {
        "n_heads": Field("num_attention_heads", n_heads),
        "n_kv_heads": Field("num_key_value_heads", n_kv_heads),
        "dropout": Field("attention_dropout", 0.0),
        "bias": Field("attention_bias", False),
    }
    return Part(AttentionConfig, name, table, fields | own)


def granite_mamba2(**own: Any) -> Part:
    """Mamba-2 by the names of Bamba and those after it."""
    fields = {
        "n_heads": Field("mamba_n_heads", N_HEADS),
        "d_head": Field("mamba_d_head", "auto", _d_head),
        "d_state": Field("mamba_d_state", 256),
        "n_groups": Field("mamba_n_groups", 1),
        "n_taps": Field("mamba_d_conv", 4),
        "convolution_bias": Field("mamba_conv_bias", True),
        "bias": Field("mamba_proj_bias", False),
        "dt_limit": DT_LIMIT,
        "expand": Field("mamba_expand", 2, lambda value, given: Mamba2Config.expand, expand_back),
    }
    return Part(Mamba2Config, "mamba", mamba2, fields | own)


def _d_head(value: Any, given: Config) -> Any:
    return inner_width(given) // count(given, "mamba_n_heads", N_HEADS, WHERE) if value == "auto" else value


# -- MLPs --------------------------------------------------------------------------------------------------------------
def gated(name: str, expand: Field, table: Table | None = GATED_MAPS, **own: Any) -> Part:
    """A gated MLP without biases."""
    fields = {"expand": expand, "activation": activation(), "gated": True, "bias": False}
    return Part(MLPConfig, name, table, fields | own)


def experts(name: str, table: Table, n_experts: Field, n_active: Field, expand: Field, **own: Any) -> Part:
    """A mixture of gated MLPs."""
    fields = {"n_experts": n_experts, "n_active": n_active, "expand": expand, "activation": activation()}
    return Part(MoEConfig, name, table, fields | own)


def by_sigmoid(normalize: str, route_scale: float, n_groups: str) -> dict[str, Any]:
    """Experts chosen by the sigmoids of their scores, corrected, within the best groups; normalize, n_groups: fields of
    theirs."""
    return {
        "router": "sigmoid",
        "correction_bias": True,
        "normalize": Field(normalize, True),
        "route_scale": Field("routed_scaling_factor", route_scale),
        "n_groups": Field(n_groups, 1),
        "n_groups_active": Field("topk_group", 1),
    }


def shared_experts(theirs: str, width: int, d_model: int) -> Field:
    """One MLP beside the experts that is as wide as this number of them, each ``moe_intermediate_size``."""

    def into(value: Any, given: Config) -> MLPConfig:
        wide = count({theirs: value}, theirs, None, WHERE) * count(given, "moe_intermediate_size", width, WHERE)
        expand = wide / count(given, "hidden_size", d_model, WHERE)
        return MLPConfig(expand=expand, activation="silu", gated=True, bias=False)

    def back(value: MLPConfig, within: MoEConfig, d_model: int) -> int:
        return value.hidden_width(d_model) // within.hidden_width(d_model)

    return Field(theirs, 1, into, back)


def with_shared(table: Table, name: str = "shared_experts") -> Table:
    """The table of experts, and that of the MLP beside them."""

    def whole(config: MoEConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        assert config.shared is not None  # as all that were read have, or that is written
        beside = GATED_MAPS(config.shared, f"{theirs}{name}.", f"{ours}shared.", d_model)
        return [*table(config, theirs, ours, d_model), *beside]

    return whole
