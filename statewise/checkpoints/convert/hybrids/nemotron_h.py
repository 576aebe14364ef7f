"""Nemotron-H: each layer is Mamba-2, attention without positions, an MLP, or experts, alone."""

from __future__ import annotations

from functools import partial

from statewise.checkpoints.convert.fields import wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import LEAST_DT, activation, hidden, layer_types, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.hybrids.parts import attention, by_sigmoid, experts
from statewise.checkpoints.convert.layer_tables import mamba2, plain_mlp, single_experts
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig

EPS = Field("layer_norm_epsilon", 1e-5)
LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
MAMBA = {
    "n_heads": Field("mamba_num_heads", 128),
    "d_head": Field("mamba_head_dim", 64),
    "d_state": Field("ssm_state_size", 128),
    "n_groups": Field("n_groups", 8),
    "n_taps": Field("conv_kernel", 4),
    "convolution_bias": Field("use_conv_bias", True),
    "bias": Field("use_bias", False),
    "dt_limit": LEAST_DT,
    "norm_eps": EPS,
}
BIAS, ACTIVATION = Field("mlp_bias", False), activation("mlp_hidden_act", "relu2")
PLAIN = {"activation": ACTIVATION, "bias": BIAS}
LATENT_BIAS = Field(
    "mlp_bias",
    False,
    lambda value, given: value and given.get("moe_latent_size") is not None,
    lambda value, within, d_model: within.shared.bias,
)
SHARED = {"expand": hidden(7688, "moe_shared_expert_intermediate_size"), **PLAIN}
MOE = experts(
    "mixer",
    single_experts(("up_proj",)),
    Field("n_routed_experts", 8),
    Field("num_experts_per_tok", 2),
    hidden(7688, "moe_intermediate_size"),
    activation=ACTIVATION,
    gated=False,
    **by_sigmoid("norm_topk_prob", 1.0, "n_group"),
    d_latent=Field("moe_latent_size", None),
    latent_bias=LATENT_BIAS,
    shared=Part(MLPConfig, "shared_experts", plain_mlp(), SHARED),
)


def kinds(given: Config) -> list[str]:
    pattern = given.get("hybrid_override_pattern")
    if pattern is None or any(given.get(name) is not None for name in ("layer_types", "layers_block_type")):
        return layer_types(given, list(LETTERS.values()))
    if not isinstance(pattern, str) or not pattern or not set(pattern) <= set(LETTERS):
        raise wrong("hybrid_override_pattern", pattern, f"a letter of {''.join(LETTERS)} for each layer", "nemotron_h")
    return [LETTERS[letter] for letter in pattern]


def mixer(part: Part) -> Kind:
    return Kind(part, None, ("norm", None))


def mlp(part: Part) -> Kind:
    return Kind(None, part, (None, "norm"))


FAMILIES = (
    Family(
        model_type="nemotron_h",
        architecture="NemotronHForCausalLM",
        prefix="backbone.",
        embedding="embeddings.weight",
        norm="norm_f",
        sizes=(131072, 4096),
        norm_eps=EPS,
        kinds=kinds,
        kinds_back=partial(types_back, theirs="layers_block_type"),
        blocks={
            "linear_attention": mixer(Part(Mamba2Config, "mixer", mamba2, MAMBA)),
            "full_attention": mixer(
                attention("mixer", 32, 8, bias=False, d_head=Field("head_dim", 128), positions=None)
            ),
            "mlp": mlp(Part(MLPConfig, "mixer", plain_mlp(), {"expand": hidden(21504), **PLAIN})),
            "moe": mlp(MOE),
        },
        required={"mamba_hidden_act": "silu", "sliding_window": None},
        left_out=("mtp.",),
        spellings={".model.": ".backbone."},  # in memory there
        aliases={
            "num_local_experts": "n_routed_experts",
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_dt_min": "time_step_min",
            "mamba_conv_bias": "use_conv_bias",
        },
    ),
)
