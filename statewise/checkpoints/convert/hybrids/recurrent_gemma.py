"""RecurrentGemma: Griffin's recurrent blocks, attention over a window in every third layer, a capped head."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from statewise.checkpoints.convert.delta_tables import rg_lru
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE, activation, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, gated
from statewise.mixers.rg_lru import RGLRUConfig


def scale(value: Any, given: Config) -> float:
    """sqrt(d_model), which that library keeps in bfloat16."""
    return torch.tensor(count({"hidden_size": value}, "hidden_size", None, WHERE) ** 0.5, dtype=torch.bfloat16).item()


def half(value: Any, given: Config) -> float:
    """The MLPs' width is half of what is said."""
    wide = count({"intermediate_size": value}, "intermediate_size", None, WHERE) // 2
    return wide / count(given, "hidden_size", 2560, WHERE)


def kinds(given: Config) -> list[str]:
    names = list(given.get("block_types") or ("recurrent", "recurrent", "attention"))
    return (names * 100)[: count(given, "num_hidden_layers", 26, WHERE)]


RECURRENCE = {
    "d_inner": Field("lru_width", None),
    "n_blocks": Field("num_attention_heads", 10),
    "n_taps": Field("conv1d_width", 4),
}
WINDOW = Field("attention_window_size", 2048)
WIDTH = Field("intermediate_size", 7680, half, lambda value, within, d_model: 2 * within.hidden_width(d_model))
ACTIVATION = activation("hidden_activation", "gelu_pytorch_tanh")
FAMILIES = (
    Family(
        model_type="recurrent_gemma",
        architecture="RecurrentGemmaForCausalLM",
        norm="final_norm",
        sizes=(256000, 2560),
        norm_eps=Field("rms_norm_eps", 1e-6),
        model={
            "embedding_scale": Field("hidden_size", 2560, scale, lambda value, within, d_model: d_model),
            "logit_cap": Field("logits_soft_cap", 30.0),
            "tie_embeddings": Field("tie_word_embeddings", True),
            "norm": "rms_offset",
        },
        block={"norm": "rms_offset"},
        kinds=kinds,
        kinds_back=partial(types_back, theirs="block_types"),
        blocks=each(
            {
                "recurrent": Part(RGLRUConfig, "temporal_block", rg_lru, RECURRENCE),
                "attention": attention("temporal_block", 10, None, **rotary(0.5), window=WINDOW, output_bias=True),
            },
            {"": gated("mlp_block", WIDTH, bias=True, activation=ACTIVATION)},
            ("temporal_pre_norm", "channel_pre_norm"),
        ),
        required={"hidden_activation": "gelu_pytorch_tanh"},
        aliases={"sliding_window": "attention_window_size"},
    ),
)
