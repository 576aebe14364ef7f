"""Bamba, Granite 4, Falcon-H1, Nemotron-H, Jamba and Zamba2 as transformers saves them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from hybrid_cases import CHECKS, Case, saved

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import CheckpointError

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
    "granite, dense, multipliers": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "num_local_experts": 0, "embedding_multiplier": 12, "logits_scaling": 10.0}
        | {"residual_multiplier": 0.22, "attention_multiplier": 0.3, "shared_intermediate_size": 31},
    ),
    "granite, options": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "num_local_experts": 7, "num_experts_per_tok": 3, "embedding_multiplier": 12}
        | {"logits_scaling": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625}
        | {"attention_bias": True, "mamba_proj_bias": True, "shared_intermediate_size": 17, "mamba_n_groups": 2},
    ),
    "granite, dense, wide groups": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[:2], "num_hidden_layers": 2, "num_local_experts": 0, "shared_intermediate_size": 23}
        | {"attention_multiplier": 0.4, "mamba_n_groups": 3, "mamba_d_conv": 2, "attention_bias": True},
    ),
    "granite, one expert each": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[1:], "num_hidden_layers": 2, "num_local_experts": 3, "num_experts_per_tok": 1}
        | {"attention_multiplier": 0.5, "shared_intermediate_size": 11, "tie_word_embeddings": True},
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
    "nemotron, narrow": (
        "nemotron_h",
        NEMOTRON
        | {
            "layers_block_type": ["mlp", "linear_attention", "full_attention"],
            "n_groups": 2,
            "mlp_bias": True,
            "ssm_state_size": 4,
        },
    ),
    "nemotron, more attention": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["full_attention", "linear_attention", "full_attention", "mlp"], "head_dim": 8}
        | {"use_conv_bias": False, "mlp_hidden_act": "silu"},
    ),
    "nemotron, one expert each": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["moe", "linear_attention", "full_attention"], "n_routed_experts": 4}
        | {"num_experts_per_tok": 1, "norm_topk_prob": False, "ssm_state_size": 4},
    ),
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
    "jamba, dense, no bias": (
        "jamba",
        JAMBA | {"num_experts": 1, "num_hidden_layers": 2, "attn_layer_offset": 1, "mamba_conv_bias": False},
    ),
    "jamba, dense, tied": (
        "jamba",
        JAMBA
        | {"num_experts": 1, "tie_word_embeddings": True, "mamba_d_state": 3, "mamba_expand": 3, "mamba_dt_rank": 2},
    ),
    "jamba, two experts": (
        "jamba",
        JAMBA | {"num_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 3, "mamba_d_conv": 3},
    ),
    "jamba, options": (
        "jamba",
        JAMBA
        | {"num_experts": 5, "num_experts_per_tok": 3, "mamba_conv_bias": False, "mamba_proj_bias": True}
        | {"mamba_dt_rank": 3, "mamba_expand": 3, "tie_word_embeddings": True, "expert_layer_period": 1}
        | {"expert_layer_offset": 0, "rms_norm_eps": 1e-3},
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, hybrids: Path) -> None:
    CHECKS[check](MODELS[name], hybrids)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "quantised": ("bamba", {"quantization_config": {"bits": 4}}, "quantization_config"),
    "activation": ("bamba", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    "scaled positions": ("bamba", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn'"),
    "layers": ("granite", {"layer_types": ["linear_attention", "pooling", "pooling"]}, "a layer of kind 'pooling moe'"),
    "sizes": ("bamba", {"mamba_d_state": 0}, "mamba_d_state=0 is out of range"),
    "more layers": ("bamba", {"num_hidden_layers": 9}, "num_hidden_layers=9, but there are tensors for 3 layers"),
    "experts": ("granite", {"num_local_experts": 5}, r"router.map.weight of shape \(4, 24\), expected \(5, 24\)"),
    "pattern": (
        "nemotron",
        {"layers_block_type": None, "hybrid_override_pattern": "MX"},
        "hybrid_override_pattern='MX'",
    ),
    "untied": ("zamba", {"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
    "places": ("zamba", {"hybrid_layer_ids": [9, 0]}, r"hybrid_layer_ids=\[9, 0\] is not supported"),
    "no multiplier": ("falcon", {"key_multiplier": None}, "key_multiplier is null; expected a value, such as 1.0"),
    "kinds": ("bamba", {"attn_layer_indices": -1}, "a field that says the kinds of the layers is of another kind"),
    "one multiplier": ("falcon", {"mlp_multipliers": [0.5]}, r"mlp_multipliers=\[0.5\] is of another kind"),
    "multipliers": ("falcon", {"ssm_multipliers": [1.0, 2.0]}, r"ssm_multipliers=\[1.0, 2.0\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, hybrids: Path, tmp_path: Path) -> None:
    name, fields, message = REFUSED[case]
    path = saved(MODELS[name], hybrids)
    config = json.loads((path / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=message) as error:
        sw.load(tmp_path)
    assert "\n" not in str(error.value)


MAMBA2 = sw.Mamba2Config(d_state=4, d_head=4)
GATED = sw.MLPConfig(expand=2, activation="silu", gated=True, bias=False)
UNWRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "two widths": (
        {
            "layers": (
                sw.BlockConfig(mixer=MAMBA2, mlp=GATED),
                sw.BlockConfig(mixer=MAMBA2, mlp=replace(GATED, expand=3)),
            )
        },
        "one intermediate_size for all layers, and this model has 16 and 24",
    ),
    "batch norm": (
        {"layers": (sw.BlockConfig(mixer=MAMBA2, mlp=GATED, norm="layer"),)},
        r"layers\.0\.norm is 'rms' there",
    ),
    "some experts": (
        {"layers": tuple(sw.BlockConfig(mixer=MAMBA2, mlp=m) for m in (GATED, sw.MoEConfig(n_experts=4, n_active=2)))},
        "no layer of",
    ),
    "MLPs alone": ({"layers": (sw.BlockConfig(mixer=None, mlp=GATED),)}, "nemotron_h does not have this model"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_not_written(case: str, tmp_path: Path) -> None:
    fields, message = UNWRITTEN[case]
    model = sw.LanguageModelConfig(**({"vocab_size": 9, "d_model": 8} | fields)).build()
    with pytest.raises(CheckpointError, match=message) as error:
        save_as(model, tmp_path / "theirs", "transformers")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("format", ["mamba_ssm", "h3", "gguf"])
def test_other_formats_refuse_what_they_have_no_place_for(format: str, tmp_path: Path) -> None:
    layer = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4, norm=False))
    model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(layer,)).build()
    with pytest.raises(CheckpointError, match=r"no Mamba2Config\.norm"):
        save_as(model, tmp_path / "theirs.gguf", format)
