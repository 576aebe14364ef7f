"""Qwen3-Next, with experts, and Qwen3.5: Gated DeltaNet, and in some layers gated attention with normed heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.delta_tables import divided_delta, gated_attention, grouped_delta
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    WHERE,
    activation,
    gqa_attention,
    head_dim,
    hidden,
    layer_types,
    model_fields,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import Table, gated_mlp, single_experts
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EPS = Field("rms_norm_eps", 1e-6)
D_HEAD = {"d_head": Field("head_dim", 256), "qk_norm_eps": EPS}
GATED: dict[str, Any] = {"gated": True, "bias": False}
NORMED = {"qk_norm": "head", "qk_norm_offset": True, "gate": True}
NORMS = ("input_layernorm", "post_attention_layernorm")


def attention(n_kv_heads: int) -> Part:
    turned = rotary(0.25, head_dim=lambda given: head_dim({"head_dim": 256, **given}))
    return Part(AttentionConfig, "self_attn", gated_attention, gqa_attention(16, n_kv_heads) | D_HEAD | turned, NORMED)


def delta(table: Table) -> Part:
    fields = {
        "n_heads": Field("linear_num_value_heads", 32),
        "n_key_heads": Field("linear_num_key_heads", 16),
        "d_key": Field("linear_key_head_dim", 128),
        "d_value": Field("linear_value_head_dim", 128),
        "n_taps": Field("linear_conv_kernel_dim", 4),
        "norm_eps": EPS,
    }
    return Part(GatedDeltaNetConfig, "linear_attn", table, fields)


def mlp(default: int | None, name: str = "mlp", width: str = "intermediate_size") -> Part:
    return Part(MLPConfig, name, gated_mlp(), {"expand": hidden(width, default), "activation": activation()}, GATED)


MOE = Part(
    MoEConfig,
    "mlp",
    single_experts(
        "gate.weight", ("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight"), "experts.{}.down_proj.weight"
    ),
    {
        "n_experts": Field("num_experts", 512),
        "n_active": Field("num_experts_per_tok", 10),
        "expand": hidden("moe_intermediate_size", 512),
        "activation": activation(),
        "normalize": Field("norm_topk_prob", True),
        "shared": mlp(512, "shared_expert", "shared_expert_intermediate_size"),
    },
    {"shared_gate": True},
)


def attention_layers(given: Config, n_layers: int) -> list[str]:
    every = count(given, "full_attention_interval", 4, WHERE)
    n_layers = count(given, "num_hidden_layers", n_layers, WHERE)
    return layer_types(given, ["linear_attention" if (i + 1) % every else "full_attention" for i in range(n_layers)])


def kinds(given: Config) -> list[str]:
    """Attention or not, and which layers have experts."""
    dense, step = given.get("mlp_only_layers") or (), count(given, "decoder_sparse_step", 1, WHERE)
    any_moe = count(given, "num_experts", 512, WHERE, at_least=0) > 0
    return [
        f"{name}{' moe' * (any_moe and i not in dense and (i + 1) % step == 0)}"
        for i, name in enumerate(attention_layers(given, 48))
    ]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    dense = [i for i, name in enumerate(names) if not name.endswith("moe")]
    return {"layer_types": [name.removesuffix(" moe") for name in names], "mlp_only_layers": dense}


def family(model_type: str, architecture: str, sizes: tuple[int, int], **own: Any) -> Family:
    return Family(
        model_type=model_type,
        architecture=architecture,
        model=model_fields(sizes[0], sizes[1], EPS),
        block={"norm_eps": EPS},
        constant={"norm": "rms_offset"},
        left_out=("mtp.",),
        required={"hidden_act": "silu"},  # of the convolutions too
        **own,
    )


FAMILIES = {
    "qwen3_next": family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        (151936, 2048),
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={
            f"{name}{suffix}": Kind(mixer, inner, NORMS, block={"norm": "rms_offset"})
            for name, mixer in (("linear_attention", delta(grouped_delta)), ("full_attention", attention(2)))
            for suffix, inner in (("", mlp(5632)), (" moe", MOE))
        },
    ),
    "qwen3_5_text": family(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        (248320, 4096),
        kinds=lambda given: attention_layers(given, 32),
        kinds_back=lambda names: {"layer_types": list(names)},
        blocks={
            name: Kind(mixer, mlp(12288), NORMS, block={"norm": "rms_offset"})
            for name, mixer in (("linear_attention", delta(divided_delta)), ("full_attention", attention(4)))
        },
    ),
}
