"""Bamba: Mamba-2, some layers of attention with rotary positions on half of each head, a gated MLP in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import hidden, rotary
from statewise.checkpoints.convert.hybrids.family import Family, Field
from statewise.checkpoints.convert.hybrids.parts import attention, each, gated, granite_mamba2

EPS = Field("rms_norm_eps", 1e-5)
MIXERS = {"mamba": granite_mamba2(norm_eps=EPS), "attention": attention("self_attn", 32, 8, **rotary(0.5, top=False))}
MLP = gated("feed_forward", hidden(14336), bias=Field("mlp_bias", False))


def kinds(given: Config) -> list[str]:
    attention = given.get("attn_layer_indices") or ()
    return ["attention" if i in attention else "mamba" for i in range(count(given, "num_hidden_layers", 32, "bamba"))]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"attn_layer_indices": [i for i, name in enumerate(names) if name == "attention"]}


FAMILIES = (
    Family(
        model_type="bamba",
        architecture="BambaForCausalLM",
        norm="final_layernorm",
        sizes=(128000, 4096),
        norm_eps=EPS,
        kinds=kinds,
        kinds_back=kinds_back,
        blocks=each(MIXERS, {"": MLP}, ("input_layernorm", "pre_ff_layernorm")),
        required={"hidden_act": "silu"},
    ),
)
