"""Small hybrids of each architecture that llama.cpp has, every parameter drawn; without ``transformers``."""

from __future__ import annotations

from typing import Any

import torch

from statewise.checkpoints.convert.hybrids import family_of
from statewise.models.language_model import LanguageModel

LINEAR, FULL = "linear_attention", "full_attention"
SIZES: dict[str, Any] = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
SMALL = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2}
GRANITE = SMALL | MAMBA | {"layer_types": [LINEAR, FULL, LINEAR, LINEAR], "num_local_experts": 0}
GRANITE |= {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}
GRANITE |= {"attention_multiplier": 0.25, "shared_intermediate_size": 96}
FALCON = SMALL | MAMBA | {"mamba_d_ssm": 128, "head_dim": 16, "key_multiplier": 0.39, "mlp_multipliers": [0.88, 0.58]}
FALCON |= {"ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.36], "embedding_multiplier": 5.6, "lm_head_multiplier": 0.3}
FALCON |= {"attention_in_multiplier": 0.8, "attention_out_multiplier": 0.93}
FALCON |= {"ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23}
QWEN = SMALL | {"head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
QWEN |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
NEMOTRON = SMALL | {"head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}
NEMOTRON |= {"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "num_experts_per_tok": 2}
JAMBA = SMALL | {"mamba_d_state": 16, "num_experts": 4, "attn_layer_period": 4, "attn_layer_offset": 2}
KIMI = SMALL | {"num_experts": 6, "num_experts_per_token": 2, "moe_intermediate_size": 32, "kv_lora_rank": 32}
KIMI |= {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 4}

# By the architecture's name: model_type, fields of its config
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "granitehybrid": ("granitemoehybrid", GRANITE),
    "granitehybrid, rotary, tied": (
        "granitemoehybrid",
        GRANITE | {"position_embedding_type": "rope", "tie_word_embeddings": True, "rope_theta": 500.0},
    ),
    "granitehybrid, experts": (
        "granitemoehybrid",
        GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "lfm2": ("lfm2", SMALL | {"layer_types": ["conv", FULL, "conv", "conv"], "block_auto_adjust_ff_dim": False}),
    "lfm2moe": (
        "lfm2_moe",
        SMALL
        | {"layer_types": ["conv", FULL, "conv", FULL], "num_dense_layers": 1, "num_experts": 6}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "falcon-h1": ("falcon_h1", FALCON),
    "falcon-h1, norm, tied": (
        "falcon_h1",
        FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
    ),
    "qwen35": ("qwen3_5_text", QWEN),
    "qwen35, other layers": (
        "qwen3_5_text",
        QWEN | {"layer_types": [FULL, LINEAR, LINEAR, FULL], "tie_word_embeddings": True, "linear_num_key_heads": 4},
    ),
    "qwen3next": ("qwen3_next", QWEN | EXPERTS | {"shared_expert_intermediate_size": 48}),
    "jamba": ("jamba", JAMBA),
    "jamba, dense": ("jamba", JAMBA | {"num_experts": 1, "mamba_dt_rank": 8, "tie_word_embeddings": True}),
    "nemotron_h": ("nemotron_h", NEMOTRON | {"layers_block_type": [LINEAR, "mlp", FULL, LINEAR]}),
    "nemotron_h_moe": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": [LINEAR, "moe", FULL, "moe"], "n_routed_experts": 6, "routed_scaling_factor": 2.5}
        | {"norm_topk_prob": True, "n_group": 3, "topk_group": 2},
    ),
    "nemotron_h_moe, latent": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": [LINEAR, "moe", FULL, "moe"], "n_routed_experts": 5, "norm_topk_prob": False}
        | {"moe_latent_size": 32},
    ),
    "kimi-linear": ("kimi_linear", KIMI | {"layer_types": [LINEAR, FULL, LINEAR, LINEAR], "first_k_dense_replace": 1}),
    "kimi-linear, options": (
        "kimi_linear",
        KIMI
        | {"layer_types": [FULL, LINEAR, LINEAR, FULL], "first_k_dense_replace": 2}
        | {"num_shared_experts": 2, "routed_scaling_factor": 1.5},
    ),
}


def build(name: str, **fields: Any) -> LanguageModel:
    """fields: in place of the case's"""
    kind, own = MODELS[name]
    family = family_of(kind)
    assert family is not None
    torch.manual_seed(0)
    model = family.config({"model_type": kind} | own | fields).build().eval()
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "embedding" in key:
                tensor.normal_(std=0.05 if model.config.tie_embeddings else 0.5)
            elif tensor.ndim == 1:
                tensor.add_(0.2 * torch.randn_like(tensor))
            elif tensor.ndim > 1 and "A_log" not in key and "convolution" not in key:
                tensor.normal_(std=1.5 * tensor.shape[-1] ** -0.5)
    return model
