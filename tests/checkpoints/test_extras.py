"""What a format has no place for is refused by its name, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import CheckpointError

MLP = sw.MLPConfig(activation="silu", gated=True, bias=False)
BLOCK = sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2), mlp=MLP)
MAMBA, MAMBA2 = sw.MambaConfig(d_state=4), sw.Mamba2Config(d_state=4, d_head=4)


def layer(block: Any = BLOCK, **fields: Any) -> dict[str, Any]:
    return {"layers": (replace(block, **fields),)}


CASES: dict[str, dict[str, Any]] = {
    "BlockConfig.branch_scale": layer(branch_scale=0.5),
    "AttentionConfig.gate": layer(mixer=sw.AttentionConfig(n_heads=2, gate=True)),
    "AttentionConfig.qk_norm": layer(mixer=sw.AttentionConfig(n_heads=2, qk_norm="head")),
    "LanguageModelConfig.embedding_scale": {"layers": (BLOCK,), "embedding_scale": 2.0},
    "LanguageModelConfig.embedding_norm": {"layers": (BLOCK,), "embedding_norm": "layer"},
    "LanguageModelConfig.logit_scale": {"layers": (BLOCK,), "logit_scale": 2.0},
    "LanguageModelConfig.logit_cap": {"layers": (BLOCK,), "logit_cap": 30.0},
    "MLPConfig.gate_scale": layer(mlp=replace(MLP, gate_scale=2.0)),
    "MLPConfig.output_scale": layer(mlp=replace(MLP, output_scale=2.0)),
    "Mamba2Config.norm": {"layers": (replace(MAMBA2, norm=False),)},
    "Mamba2Config.output_bias": {"layers": (replace(MAMBA2, output_bias=True),)},
    "activation relu2": layer(mlp=sw.MLPConfig(activation="relu2", bias=False)),
    "norm='rms_offset'": layer(norm="rms_offset"),
    "mixture of experts": layer(mlp=sw.MoEConfig(n_experts=2, n_active=1)),
    "mixer=None": layer(mixer=None),
    "placement='after'": layer(placement="after"),
}


@pytest.mark.parametrize("format", ["mamba_ssm", "gguf", "h3"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str, format: str, tmp_path: Path) -> None:
    model = sw.LanguageModelConfig(**{"vocab_size": 16, "d_model": 8, **CASES[name]}).build()
    target = tmp_path / ("model.gguf" if format == "gguf" else "model")
    with pytest.raises(CheckpointError, match=name):
        save_as(model, target, format)
    assert not list(tmp_path.iterdir())
