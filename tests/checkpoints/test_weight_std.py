"""The scale of the projections at the start, where the published one is for wide models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.models.mlp import MLPConfig

CONFIGS: dict[str, Callable[..., Any]] = {
    "h3": lambda **fields: sw.H3Config(d_state=4, **fields),
    "attention": lambda **fields: AttentionConfig(n_heads=4, **fields),
    "linear": lambda **fields: LinearAttentionConfig(n_heads=4, **fields),
    "mlp": lambda **fields: MLPConfig(**fields),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_as_asked(name: str) -> None:
    torch.manual_seed(0)
    for fields, std in (({}, 0.02), ({"weight_std": 0.3}, 0.3)):
        module = CONFIGS[name](**fields).build(128)
        module.reset_parameters()
        for projection in (module.in_proj, module.out_proj):
            assert projection.weight.std().item() == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("given", [0.0, -0.02, math.nan, math.inf, True, "0.02"])
def test_refused(name: str, given: object) -> None:
    with pytest.raises(ConfigError, match=r"Config\.weight_std=.*; expected a number above 0"):
        CONFIGS[name](weight_std=given)


def test_a_written_file_has_no_need_of_it(tmp_path: Path) -> None:
    """It says how a model began: formats that cannot hold it take the model."""
    mlp = MLPConfig(activation="gelu_tanh", weight_std=0.1)
    mixers = (
        sw.H3Config(d_state=4, weight_std=0.1),
        AttentionConfig(n_heads=2, positions=None, bias=True, weight_std=0.1),
    )
    layers = tuple(sw.BlockConfig(mixer=mixer, mlp=mlp, norm="layer") for mixer in mixers)
    model = sw.LanguageModelConfig(vocab_size=16, d_model=8, layers=layers, norm="layer").build()
    sw.save_as(model, tmp_path / "theirs", "h3")
    tokens = torch.arange(16).unsqueeze(0)
    torch.testing.assert_close(sw.load(tmp_path / "theirs")(tokens)[0], model(tokens)[0])
