"""Forecasters, and series for them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.models.mlp import MLPConfig

NAN = math.nan


MAMBA = Mamba2Config(d_state=8, d_head=8, chunk_length=8)


LAYERS = (MAMBA, BlockConfig(mixer=AttentionConfig(n_heads=2, window=6), mlp=MLPConfig(expand=2)))


OPTIONS: dict[str, Any] = {"d_target": 2, "d_covariates": 1, "d_past_covariates": 2, "quantiles": (0.1, 0.5, 0.6, 0.95)}


def forecaster(dtype: torch.dtype = torch.float64, **options: Any) -> Forecaster:
    torch.manual_seed(0)
    model = ForecasterConfig(**{"horizon": 5, "d_model": 16, "layers": LAYERS, **options}).build().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def example(batch: int = 3, length: int = 23) -> dict[str, Tensor]:
    """Random walks far from zero, with gaps at the beginning, in the middle and at the end."""
    generator = torch.Generator().manual_seed(1)
    history = torch.randn(batch, length, 2, generator=generator, dtype=torch.float64).cumsum(1) + 300
    history[0, 3:6] = NAN
    history[1, :4, 1] = NAN
    history[2, -2:] = NAN
    return {
        "history": history,
        "covariates": torch.randn(batch, length, 3, generator=generator, dtype=torch.float64),
        "future_covariates": torch.randn(batch, 5, 1, generator=generator, dtype=torch.float64),
    }


def mean(weighted: list[tuple[float, float]]) -> float:
    return sum(w * v for w, v in weighted) / sum(w for w, _ in weighted) if weighted else 0.0
