"""Bamba and Granite 4 as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from hybrid_cases import CHECKS, Case

MAMBA = {"mamba_n_heads": 6, "mamba_d_state": 5, "mamba_chunk_size": 8}
SMALL: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6}
SMALL |= {"num_key_value_heads": 2} | MAMBA
TYPES = ["linear_attention", "full_attention", "linear_attention"]
MODELS: dict[str, Case] = {
    "bamba": ("bamba", SMALL | {"attn_layer_indices": [1]}),
    "bamba, no attention": ("bamba", SMALL | {"mamba_n_groups": 3, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "bamba, options": (
        "bamba",
        SMALL
        | {"attn_layer_indices": [0, 2], "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}
        | {"mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_expand": 3, "num_attention_heads": 4, "hidden_size": 32}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "time_step_limit": [0.1, 0.9]},
    ),
    "granite": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "shared_intermediate_size": 29, "num_local_experts": 4, "attention_multiplier": 0.3},
    ),
    "granite, dense": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[1:], "num_hidden_layers": 2, "num_local_experts": 0, "position_embedding_type": "rope"}
        | {"attention_multiplier": 0.7, "tie_word_embeddings": True, "shared_intermediate_size": 31},
    ),
    "granite, options": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "num_local_experts": 7, "num_experts_per_tok": 3, "embedding_multiplier": 12}
        | {"logits_scaling": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625}
        | {"attention_bias": True, "mamba_proj_bias": True, "shared_intermediate_size": 17, "mamba_n_groups": 2},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("granite")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, folder: Path) -> None:
    CHECKS[check](MODELS[name], folder)
