"""LFM2 as transformers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from hybrid_cases import CHECKS, Case

SMALL: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: dict[str, Case] = {
    "lfm2": ("lfm2", SMALL | {"intermediate_size": 31, "block_multiple_of": 8, "full_attn_idxs": [1]}),
    "lfm2, one head of keys, untied": (
        "lfm2",
        SMALL
        | {
            "intermediate_size": 37,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "conv", "full_attention"],
        }
        | {"num_key_value_heads": 1, "tie_word_embeddings": False, "conv_L_cache": 4, "norm_eps": 1e-3},
    ),
    "lfm2, options": (
        "lfm2",
        SMALL
        | {"intermediate_size": 50, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 5, "conv_bias": True}
        | {"head_dim": 10, "full_attn_idxs": [0, 2], "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ),
}

MOE: dict[str, Any] = SMALL | {"intermediate_size": 31, "moe_intermediate_size": 13, "num_experts": 5}
MOE |= {"num_experts_per_tok": 2, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"]}
MODELS |= {
    "lfm2_moe": ("lfm2_moe", MOE),
    "lfm2_moe, no bias of experts": (
        "lfm2_moe",
        MOE | {"use_expert_bias": False, "num_dense_layers": 0, "tie_word_embeddings": False, "conv_bias": True},
    ),
    "lfm2_moe, options": (
        "lfm2_moe",
        MOE
        | {"norm_topk_prob": False, "routed_scaling_factor": 1.5, "num_experts_per_tok": 1, "conv_L_cache": 4}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "norm_eps": 1e-3},
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, hybrids: Path) -> None:
    CHECKS[check](MODELS[name], hybrids)
