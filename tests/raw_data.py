"""Data far from mean 0, and small runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from training_runs import train_config

import statewise as sw
from statewise.data import LabelledDataConfig, open_labelled
from statewise.mixers.s4d import S4DConfig
from statewise.training import RunConfig

LAYERS = (S4DConfig(d_state=8, dt_range=(1e-2, 1e-1)),)


def shifted(folder: Path, dtype: str = "float32", n: int = 80) -> Path:
    """Two classes that differ by a small change on a mean of 1,000."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 30, 2)).cumsum(1) * 20 + 1000
    y = np.where(x[:, -1, 0] > 1000, "up", "down")
    np.savez(folder / "own.npz", train_x=x.astype(dtype), train_y=y, test_x=x[:32].astype(dtype), test_y=y[:32])
    return folder / "own.npz"


def run_on(data: LabelledDataConfig, **settings: Any) -> RunConfig:
    opened = open_labelled(data)
    fields = {"n_classes": len(opened.classes), "d_input": opened.d_input}
    model = sw.SequenceClassifierConfig(d_model=8, layers=LAYERS, **fields)
    options = {"batch_size": 16, "save_minutes": None, "lr": 3e-2, "steps": 12, **settings}
    return RunConfig(model=model, data=data, train=train_config(**options))
