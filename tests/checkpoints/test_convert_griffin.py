"""RecurrentGemma and xLSTM as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from hybrid_cases import CHECKS, Case

GEMMA: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 42, "num_attention_heads": 4, "num_hidden_layers": 3}
GEMMA |= {"num_key_value_heads": 1, "attention_window_size": 9}
XLSTM: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_blocks": 2, "num_heads": 2}
XLSTM |= {"autocast_kernel_dtype": "float32", "ffn_round_up_to_multiple_of": 8}
MODELS: dict[str, Case] = {
    "recurrent_gemma": ("recurrent_gemma", GEMMA),
    "recurrent_gemma, two layers": (
        "recurrent_gemma",
        GEMMA
        | {
            "num_hidden_layers": 2,
            "block_types": ["attention", "recurrent"],
            "lru_width": 36,
            "tie_word_embeddings": False,
        }
        | {"attention_window_size": 100, "conv1d_width": 2},
    ),
    "recurrent_gemma, options": (
        "recurrent_gemma",
        GEMMA
        | {"attention_bias": True, "num_key_value_heads": 2, "logits_soft_cap": 2.5, "rms_norm_eps": 1e-3}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0}},
    ),
    "xlstm": ("xlstm", XLSTM),
    "xlstm, other widths": (
        "xlstm",
        XLSTM | {"hidden_size": 24, "num_heads": 3, "qk_dim_factor": 0.75, "v_dim_factor": 2.0, "gate_soft_cap": 2.0},
    ),
    "xlstm, options": (
        "xlstm",
        XLSTM
        | {"num_hidden_layers": 3, "num_blocks": 3, "output_logit_soft_cap": 8.0, "norm_eps": 1e-3}
        | {"ffn_proj_factor": 1.7, "ffn_round_up_to_multiple_of": 5},
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, hybrids: Path) -> None:
    CHECKS[check](MODELS[name], hybrids)
