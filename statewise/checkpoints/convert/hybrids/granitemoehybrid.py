"""Granite 4: Mamba-2 or attention, with four multipliers; a gated MLP in each layer, beside experts or alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import divisor, hidden, layer_types, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field
from statewise.checkpoints.convert.hybrids.parts import attention, each, experts, gated, granite_mamba2
from statewise.checkpoints.convert.layer_tables import plain_mlp, stacked_experts

EPS = Field("rms_norm_eps", 1e-6)
POSITIONS = Field(
    "position_embedding_type",
    None,
    lambda value, given: "rotary" if value == "rope" else None,
    lambda value, within, d_model: "rope" if value == "rotary" else None,
)
SCALE, BASE = Field("attention_multiplier", 1.0), rotary()["rotary_base"]
ATTENTION = attention("self_attn", 32, None, positions=POSITIONS, scale=SCALE, rotary_base=BASE)
PROJECTIONS = plain_mlp("input_linear", "output_linear")
MLP = gated("shared_mlp", hidden(1024, "shared_intermediate_size"), PROJECTIONS, activation="silu")
STACKED = stacked_experts(
    "router.layer.weight", "input_linear.weight", "output_linear.weight", within="block_sparse_moe."
)
CHOICE = Field("num_local_experts", 8), Field("num_experts_per_tok", 2)
MOE = experts("", STACKED, *CHOICE, hidden(11008), activation="silu", router="softmax_chosen", shared=MLP)


def kinds(given: Config) -> list[str]:
    n_layers = count(given, "num_hidden_layers", 32, "granitemoehybrid")
    any_moe = count(given, "num_local_experts", 8, "granitemoehybrid", at_least=0) > 0
    return [f"{name}{' moe' * any_moe}" for name in layer_types(given, ["linear_attention"] * n_layers)]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return types_back(names) | ({} if names[0].endswith("moe") else {"num_local_experts": 0})


FAMILIES = (
    Family(
        model_type="granitemoehybrid",
        architecture="GraniteMoeHybridForCausalLM",
        sizes=(32000, 4096),
        norm_eps=EPS,
        model={"embedding_scale": Field("embedding_multiplier", 1.0), "logit_scale": divisor("logits_scaling")},
        block={"branch_scale": Field("residual_multiplier", 1.0)},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks=each(
            {"linear_attention": granite_mamba2(norm_eps=EPS), "full_attention": ATTENTION},
            {"": MLP, " moe": MOE},
            ("input_layernorm", "post_attention_layernorm"),
        ),
        required={"hidden_act": "silu"},
        spellings={  # of the library in memory
            ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
            ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
            ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
        },
    ),
)
