"""Bamba, Granite 4, Falcon-H1, Nemotron-H, Jamba and Zamba2 as transformers saves them."""

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
FALCON = SMALL | {"mamba_d_ssm": 30, "mamba_n_heads": 6, "num_hidden_layers": 2}
NEMOTRON: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 6, "head_dim": 5}
NEMOTRON |= {"num_key_value_heads": 2, "mamba_num_heads": 6, "mamba_head_dim": 5, "ssm_state_size": 7, "n_groups": 3}
NEMOTRON |= {"layers_block_type": ["linear_attention", "mlp", "full_attention"], "moe_intermediate_size": 13}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 19, "chunk_size": 8}
ZAMBA: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 6, "adapter_rank": 5}
ZAMBA |= {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 4}
ZAMBA |= {"mamba_d_state": 7, "n_mamba_heads": 6, "chunk_size": 8}
JAMBA: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 4, "num_attention_heads": 6}
JAMBA |= {
    "num_key_value_heads": 2,
    "mamba_d_state": 5,
    "num_experts": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
}
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
    "falcon": ("falcon_h1", FALCON),
    "falcon, multipliers": (
        "falcon_h1",
        FALCON
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 3, "key_multiplier": 0.39}
        | {"ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.36], "mlp_multipliers": [0.88, 0.58], "head_dim": 6}
        | {"embedding_multiplier": 5.6, "lm_head_multiplier": 0.03, "attention_out_multiplier": 0.93}
        | {"attention_in_multiplier": 0.8, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23},
    ),
    "falcon, options": (
        "falcon_h1",
        FALCON
        | {"mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True, "projectors_bias": True}
        | {"mamba_d_ssm": None, "tie_word_embeddings": True, "mamba_conv_bias": False},
    ),
    "nemotron": ("nemotron_h", NEMOTRON),
    "nemotron, experts": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6}
        | {"num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "n_group": 3, "topk_group": 2},
    ),
    "nemotron, options": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["moe", "linear_attention", "mlp", "full_attention"], "n_routed_experts": 5}
        | {"moe_latent_size": 11, "mlp_bias": True, "use_bias": True, "use_conv_bias": False, "norm_topk_prob": False}
        | {"mlp_hidden_act": "silu", "time_step_min": 0.05, "n_groups": 1},
    ),
    "zamba": ("zamba2", ZAMBA),
    "zamba, adapters": (
        "zamba2",
        ZAMBA
        | {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True, "mamba_ngroups": 3}
        | {"layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"]},
    ),
    "zamba, options": (
        "zamba2",
        ZAMBA
        | {"add_bias_linear": True, "hidden_act": "silu", "time_step_min": 0.02}
        | {
            "num_hidden_layers": 3,
            "adapter_rank": 1,
            "mamba_expand": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        },
    ),
    "jamba": ("jamba", JAMBA),
    "jamba, dense": ("jamba", JAMBA | {"num_experts": 1, "attn_layer_period": 3, "attn_layer_offset": 0}),
    "jamba, options": (
        "jamba",
        JAMBA
        | {"num_experts": 5, "num_experts_per_tok": 3, "mamba_conv_bias": False, "mamba_proj_bias": True}
        | {"mamba_dt_rank": 3, "mamba_expand": 3, "tie_word_embeddings": True, "expert_layer_period": 1}
        | {"expert_layer_offset": 0, "rms_norm_eps": 1e-3},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrids")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, folder: Path) -> None:
    CHECKS[check](MODELS[name], folder)
