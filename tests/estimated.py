"""Runs whose memory is estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training_runs import small_run

import statewise as sw
from statewise.training import RunConfig


def run_of(folder: Path, layer: Any, n_layers: int = 2, **settings: Any) -> RunConfig:
    model = sw.LanguageModelConfig(vocab_size=257, d_model=128, layers=(layer,) * n_layers)
    return small_run(folder, model=model, **{"batch_size": 8, "length": 512, **settings})
