"""Jamba: Mamba with norms on dt, B and C, some layers of attention without positions; an MLP or experts in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import hidden
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, experts, gated
from statewise.checkpoints.convert.layer_tables import mamba, single_experts
from statewise.errors import CheckpointError
from statewise.mixers.mamba import MambaConfig

EPS = Field("rms_norm_eps", 1e-6)
SELECTIVE = {
    "d_state": Field("mamba_d_state", 16),
    "n_taps": Field("mamba_d_conv", 4),
    "expand": Field("mamba_expand", 2),
    "dt_rank": Field("mamba_dt_rank", "auto", lambda value, given: None if value == "auto" else value),
    "convolution_bias": Field("mamba_conv_bias", True),
    "bias": Field("mamba_proj_bias", False),
    "norm_eps": EPS,
    "norm_dt_b_c": True,
    "norm_weights": True,
}
WIDTH, CHOICE = hidden(14336), (Field("num_experts", 16), Field("num_experts_per_tok", 2))
MIXERS = {
    "mamba": Part(MambaConfig, "mamba", mamba, SELECTIVE),
    "attention": attention("self_attn", 32, 8, bias=False, positions=None),
}
MLPS = {
    "": gated("feed_forward", WIDTH),
    " moe": experts("feed_forward", single_experts(router="router.weight"), *CHOICE, WIDTH),
}
PERIODS = {"attn_layer": (8, 4), "expert_layer": (2, 1)}  # and at which of them: as the library has it


def at(given: Config, what: str, i: int) -> bool:
    period, offset = PERIODS[what]
    every = count(given, f"{what}_period", period, "jamba")
    return i % every == count(given, f"{what}_offset", offset, "jamba", at_least=0)


def kinds(given: Config) -> list[str]:
    any_moe = count(given, "num_experts", 16, "jamba") > 1
    return [
        ("attention" if at(given, "attn_layer", i) else "mamba") + " moe" * (any_moe and at(given, "expert_layer", i))
        for i in range(count(given, "num_hidden_layers", 32, "jamba"))
    ]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    n = len(names)
    said: dict[str, Any] = {}
    for what, found in (
        ("attn_layer", [name.startswith("attention") for name in names]),
        ("expert_layer", [name.endswith("moe") for name in names]),
    ):
        choices = ((period, offset) for period in range(1, n + 2) for offset in range(period))
        fits = (c for c in choices if [i % c[0] == c[1] for i in range(n)] == found)
        period = next(fits, None)
        if period is None:
            raise CheckpointError(f"transformers' jamba has one layer of a kind in every so many, not layers {found}")
        said |= {f"{what}_period": period[0], f"{what}_offset": period[1]}
    return said if any(name.endswith("moe") for name in names) else {**said, "num_experts": 1}


FAMILIES = (
    Family(
        model_type="jamba",
        architecture="JambaForCausalLM",
        norm="final_layernorm",
        sizes=(65536, 4096),
        norm_eps=EPS,
        kinds=kinds,
        kinds_back=kinds_back,
        blocks=each(MIXERS, MLPS, ("input_layernorm", "pre_ff_layernorm")),
        required={"hidden_act": "silu"},
        aliases={"num_local_experts": "num_experts"},
    ),
)
