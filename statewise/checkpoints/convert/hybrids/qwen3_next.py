"""Qwen3-Next, with experts, and Qwen3.5: Gated DeltaNet, and in some layers gated attention with normed heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.delta_tables import divided_delta, gated_attention, grouped_delta
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE, head_dim, hidden, layer_types, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, experts, gated
from statewise.checkpoints.convert.layer_tables import Table, single_experts
from statewise.mixers.delta_net import GatedDeltaNetConfig

EPS = Field("rms_norm_eps", 1e-6)
HEADS = {
    "d_head": Field("head_dim", 256),
    **rotary(0.25, head_dim=lambda given: head_dim({"head_dim": 256, **given})),
    "qk_norm": "head",
    "qk_norm_eps": EPS,
    "qk_norm_offset": True,
    "gate": True,
}
DELTA = {
    "n_heads": Field("linear_num_value_heads", 32),
    "n_key_heads": Field("linear_num_key_heads", 16),
    "d_key": Field("linear_key_head_dim", 128),
    "d_value": Field("linear_value_head_dim", 128),
    "n_taps": Field("linear_conv_kernel_dim", 4),
    "norm_eps": EPS,
}
MOE = experts(
    "mlp",
    single_experts(),
    Field("num_experts", 512),
    Field("num_experts_per_tok", 10),
    hidden(512, "moe_intermediate_size"),
    normalize=Field("norm_topk_prob", True),
    shared=gated("shared_expert", hidden(512, "shared_expert_intermediate_size")),
    shared_gate=True,
)


def layers(table: Table, n_kv_heads: int, mlps: dict[str, Part]) -> dict[str, Kind]:
    mixers = {
        "linear_attention": Part(GatedDeltaNetConfig, "linear_attn", table, DELTA),
        "full_attention": attention("self_attn", 16, n_kv_heads, gated_attention, **HEADS),
    }
    return each(mixers, mlps, ("input_layernorm", "post_attention_layernorm"))


def mixers(given: Config, n_layers: int) -> list[str]:
    every = count(given, "full_attention_interval", 4, WHERE)
    n_layers = count(given, "num_hidden_layers", n_layers, WHERE)
    return layer_types(given, ["linear_attention" if (i + 1) % every else "full_attention" for i in range(n_layers)])


def kinds(given: Config) -> list[str]:
    """Attention or not, and which layers have experts."""
    dense, step = given.get("mlp_only_layers") or (), count(given, "decoder_sparse_step", 1, WHERE)
    any_moe = count(given, "num_experts", 512, WHERE, at_least=0) > 0
    return [
        f"{name}{' moe' * (any_moe and i not in dense and (i + 1) % step == 0)}"
        for i, name in enumerate(mixers(given, 48))
    ]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return types_back(names) | {"mlp_only_layers": [i for i, name in enumerate(names) if not name.endswith("moe")]}


COMMON: dict[str, Any] = {
    "norm_eps": EPS,
    "model": {"norm": "rms_offset"},
    "block": {"norm": "rms_offset"},
    "required": {"hidden_act": "silu"},  # of the convolutions too
    "left_out": ("mtp.",),
}
FAMILIES = (
    Family(
        model_type="qwen3_next",
        architecture="Qwen3NextForCausalLM",
        sizes=(151936, 2048),
        kinds=kinds,
        kinds_back=kinds_back,
        blocks=layers(grouped_delta, 2, {"": gated("mlp", hidden(5632)), " moe": MOE}),
        **COMMON,
    ),
    Family(
        model_type="qwen3_5_text",
        architecture="Qwen3_5ForCausalLM",
        sizes=(248320, 4096),
        kinds=lambda given: mixers(given, 32),
        kinds_back=types_back,
        blocks=layers(divided_delta, 4, {"": gated("mlp", hidden(12288))}),
        **COMMON,
    ),
)
