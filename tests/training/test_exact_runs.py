"""A run in exact mode: recorded, kept when it is resumed, and one model however its rows come together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import statewise as sw
from statewise import native
from statewise.configuration import assign
from statewise.errors import ConfigError
from statewise.kernels.exact import is_exact
from statewise.training.config import BudgetConfig, TrainConfig
from statewise.training.loop import train_run
from statewise.training.presets import PRESETS

pytestmark = pytest.mark.skipif(not native.available(), reason="exact mode needs the C kernels")


def test_a_run_keeps_it(tmp_path: Path) -> None:
    run = assign(PRESETS["tiny"](), ["train.exact=true", "train.budget.steps=4", "train.batch_size=2"])
    whole = train_run(run, tmp_path / "whole")
    seen: list[bool] = []

    def stop() -> bool:
        seen.append(is_exact())
        return len(seen) == 2

    for resume in (False, True):
        train_run(None if resume else run, tmp_path / "again", resume=resume, stop_when=stop)
    assert all(seen)
    assert len(seen) >= 4
    assert not is_exact()
    assert '"exact": true' in (tmp_path / "again" / "run.json").read_text("utf-8")
    first, second = (sw.load(tmp_path / name).state_dict() for name in ("whole", "again"))
    assert whole.step == 4
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("field", "value"), [("precision", "bfloat16"), ("compile", True), ("device", "cuda")])
def test_what_it_cannot_be_with(field: str, value: Any) -> None:
    exact = TrainConfig(budget=BudgetConfig(steps=1), exact=True)
    assert exact.place == "cpu"
    with pytest.raises(ConfigError, match=f"exact=True with {field}="):
        replace(exact, **{field: value})
