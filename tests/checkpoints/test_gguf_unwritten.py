"""What llama.cpp has no architecture for is refused in one line that says so, and where else the model can go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import LINEAR, MAMBA, SMALL
from hybrid_models import build as build_hybrid

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.hybrids import family_of
from statewise.errors import CheckpointError

pytest.importorskip("gguf")
FULL = "full_attention"
ABSENT: dict[str, dict[str, Any]] = {
    "bamba": SMALL | MAMBA | {"attn_layer_indices": [1], "num_hidden_layers": 2},
    "zamba2": SMALL
    | {"layers_block_type": [LINEAR, "hybrid"], "num_hidden_layers": 2, "adapter_rank": 4, "mamba_d_state": 8}
    | {"n_mamba_heads": 8},
    "olmo_hybrid": SMALL | {"layer_types": [LINEAR, FULL], "num_hidden_layers": 2},
    "recurrent_gemma": SMALL | {"num_hidden_layers": 3, "head_dim": 16},
    "xlstm": {"vocab_size": 260, "hidden_size": 64, "num_heads": 4, "num_hidden_layers": 2},
}


@pytest.mark.parametrize("kind", ABSENT)
def test_llama_cpp_has_no_such_architecture(kind: str, tmp_path: Path) -> None:
    family = family_of(kind)
    assert family is not None
    model = family.config({"model_type": kind} | ABSENT[kind]).build()
    with pytest.raises(CheckpointError) as caught:
        save_as(model, tmp_path / "model.gguf", "gguf")
    said = (
        f"llama.cpp has no architecture of its own for this model, which transformers calls {kind}; write it "
        "as 'transformers', or in Statewise's own format"
    )
    assert str(caught.value).endswith(said)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("name", "other"), [("qwen35", "write it as 'transformers', or in"), ("kimi-linear", "keep it in")]
)
def test_heads_of_two_widths(name: str, other: str, tmp_path: Path) -> None:
    plain = build_hybrid(name).config
    layers = tuple(
        replace(block, mixer=replace(block.mixer, d_value=16, d_key=32))
        if isinstance(block.mixer, (sw.GatedDeltaNetConfig, sw.KDAConfig))
        else block
        for block in plain.blocks
    )
    message = rf"values are as wide as their keys; layers\[.\] has d_key=32 and d_value=16: {other} Statewise"
    with pytest.raises(CheckpointError, match=message) as caught:
        save_as(replace(plain, layers=layers).build(), tmp_path / "model.gguf", "gguf")
    assert "\n" not in str(caught.value)


def test_layers_that_nobody_else_has(tmp_path: Path) -> None:
    model = sw.LanguageModelConfig(vocab_size=20, d_model=8, layers=(sw.S4DConfig(), sw.MambaConfig())).build()
    message = "no architecture with layers of S4D, as layers.0. is; keep the model in Statewise's own format"
    with pytest.raises(CheckpointError, match=message):
        save_as(model, tmp_path / "model.gguf", "gguf")


def test_hybrids_without_attention(tmp_path: Path) -> None:
    layer = sw.BlockConfig(mixer=sw.Mamba2Config(d_head=8), mlp=sw.MLPConfig(activation="silu", gated=True, bias=False))
    model = sw.LanguageModelConfig(vocab_size=20, d_model=16, layers=(layer,) * 2).build()
    message = (
        "hybrids have layers of attention, and this model has none: write it as 'transformers', or in Statewise's own"
    )
    with pytest.raises(CheckpointError, match=message):
        save_as(model, tmp_path / "model.gguf", "gguf")
