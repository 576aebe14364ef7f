"""The experiment that trains H3's published code: its loop is that of ``reproduce h3-synthetics``, side by side."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from places import ROOT
from torch import Tensor, nn

from statewise.reproduce.h3_synthetics import TASKS, H3SyntheticsSettings, run_config
from statewise.training.schedule import learning_rate_factor

FILE = ROOT / "experiments" / "published_h3_synthetics.py"
_spec = importlib.util.spec_from_file_location("published_h3_synthetics", FILE)
assert _spec is not None
assert _spec.loader is not None
published = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(published)


@pytest.mark.parametrize(("name", "task"), [*zip(("induction_head", "assoc_recall"), TASKS)])
def test_the_rates_are_ours(name: str, task: str) -> None:
    train = run_config(H3SyntheticsSettings(), task, "h3", 0).train
    steps = 157 * published.TASKS[name]["epochs"]
    assert train.budget.epochs == published.TASKS[name]["epochs"]
    for step in (0, 100, steps // 10, steps // 10 + 1, steps // 2, steps - 1):
        ours = train.optimizer.lr * learning_rate_factor(step / steps, **vars(train.schedule))
        assert published.rate(name, step, steps) == pytest.approx(ours, rel=1e-9, abs=1e-12)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.out.bias._optim = {"lr": published.LR, "weight_decay": 0.0}  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Any:
        return (SimpleNamespace(logits=self.out(self.embedding(tokens).cumsum(1))),)


def test_seeds_side_by_side_go_as_each_alone() -> None:
    torch.manual_seed(0)
    models = {seed: Tiny().double() for seed in (3, 4, 5)}
    alone = copy.deepcopy(models[5])
    seeds = published.Seeds(models)
    own = [{"params": [alone.embedding.weight, alone.out.weight], "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW([*own, {"params": [alone.out.bias], "weight_decay": 0.0}], lr=1e-2)
    for step in range(6):
        inputs, targets = torch.randint(5, (2, 3, 8, 7))
        if step == 3:
            seeds.keep([0, 2])
        chosen = torch.tensor([0, 1, 2] if step < 3 else [0, 2])
        seeds.step(inputs[chosen], targets[chosen], 1e-2)
        optimizer.zero_grad()
        F.cross_entropy(alone(inputs[2])[0].logits.flatten(0, 1), targets[2].flatten()).backward()
        optimizer.step()
    assert seeds.seeds == [3, 5]
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(seeds.parameters[name][1], parameter)
    inputs, targets = torch.randint(5, (2, 50, 7))
    right = (alone(inputs)[0].logits[:, -1].argmax(-1) == targets[:, -1]).double().mean()
    assert seeds.accuracy(inputs, targets)[1] == pytest.approx(float(right))


def test_what_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"give a checkout of github\.com/HazyResearch/safari"):
        published.open_checkout(tmp_path)
