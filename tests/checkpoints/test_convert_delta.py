"""Hybrids of the delta rule as transformers saves them: Qwen3-Next, Qwen3.5, OLMo-Hybrid, Kimi Linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
import transformers
from hybrid_cases import CHECKS, EAGER, Case, far, ids, loaded

SMALL: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 4, "num_key_value_heads": 2}
QWEN = SMALL | {"num_hidden_layers": 4, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
QWEN |= {"linear_key_head_dim": 5, "linear_value_head_dim": 6}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 7, "shared_expert_intermediate_size": 9}
LINEAR, FULL = "linear_attention", "full_attention"
KIMI = SMALL | {"num_key_value_heads": 4, "num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 2}
KIMI |= {"moe_intermediate_size": 7, "n_shared_experts": 1, "kv_lora_rank": 10, "qk_rope_head_dim": 2, "v_head_dim": 5}
KIMI |= {"qk_nope_head_dim": 4, "linear_head_dim": 6, "linear_num_heads": 3, "layer_types": [LINEAR, FULL, LINEAR]}
MODELS: dict[str, Case] = {
    "qwen3_next": ("qwen3_next", QWEN | EXPERTS),
    "qwen3_next, some layers dense": (
        "qwen3_next",
        QWEN
        | EXPERTS
        | {"mlp_only_layers": [1, 3], "norm_topk_prob": False, "attention_bias": True, "linear_conv_kernel_dim": 3}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    "qwen3_next, other layers": (
        "qwen3_next",
        QWEN
        | EXPERTS
        | {"num_hidden_layers": 2, "layer_types": [FULL, LINEAR], "tie_word_embeddings": True, "rms_norm_eps": 1e-3}
        | {"linear_num_key_heads": 3, "linear_num_value_heads": 3, "num_experts_per_tok": 5},
    ),
    "qwen3_5": ("qwen3_5_text", QWEN),
    "qwen3_5, one key head": (
        "qwen3_5_text",
        QWEN | {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    ),
    "qwen3_5, options": (
        "qwen3_5_text",
        QWEN
        | {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL], "tie_word_embeddings": True, "attention_bias": True},
    ),
    "olmo_hybrid": ("olmo_hybrid", SMALL | {"num_hidden_layers": 4}),
    "olmo_hybrid, without positions": (
        "olmo_hybrid",
        SMALL
        | {"num_hidden_layers": 2, "layer_types": [FULL, LINEAR], "num_key_value_heads": None}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "linear_allow_neg_eigval": False},
    ),
    "olmo_hybrid, options": (
        "olmo_hybrid",
        SMALL
        | {"num_hidden_layers": 3, "layer_types": [LINEAR, FULL, LINEAR], "tie_word_embeddings": True}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 5, "linear_value_head_dim": 3}
        | {"linear_conv_kernel_dim": 2, "attention_bias": True, "rms_norm_eps": 1e-3},
    ),
    "kimi_linear": ("kimi_linear", KIMI),
    "kimi_linear, groups of experts": (
        "kimi_linear",
        KIMI
        | {"num_expert_group": 3, "topk_group": 2, "num_shared_experts": 2, "routed_scaling_factor": 1.7}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "q_lora_rank": 9, "attention_bias": True},
    ),
    "kimi_linear, dense": (
        "kimi_linear",
        KIMI | {"mlp_layer_types": ["dense"] * 3, "linear_conv_kernel_dim": 3} | {"rms_norm_eps": 1e-3},
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, hybrids: Path) -> None:
    CHECKS[check](MODELS[name], hybrids)


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_the_language_model_inside_one_that_sees(tied: bool, tmp_path: Path) -> None:
    vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 24}
    text = QWEN | {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL], "vocab_size": 67}
    config = transformers.AutoConfig.for_model(
        "qwen3_5", text_config=text, vision_config=vision, tie_word_embeddings=tied, image_token_id=66
    )
    torch.manual_seed(0)
    theirs = transformers.AutoModelForImageTextToText.from_config(config, **EAGER).eval()
    for tensor in theirs.parameters():
        tensor.normal_(std=0.3)
    theirs.save_pretrained(tmp_path / "seeing")
    tokens = ids(2, 20).clamp(max=60)
    assert far(loaded(tmp_path / "seeing")(tokens)[0], theirs(input_ids=tokens, use_cache=False).logits) < 1e-5
