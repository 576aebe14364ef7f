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


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, hybrids: Path) -> None:
    CHECKS[check](MODELS[name], hybrids)
