"""The published settings of the Long Range Arena: the tables, the experiment files, and what they build."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT

from statewise.errors import ConfigError
from statewise.mixers.h3 import H3Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.encoder import SequenceModel, SequenceModelConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.reproduce.lra.published import ACCURACY, AVERAGE, SETTINGS, TASKS, published_run
from statewise.reproduce.lra.settings import LraSettings
from statewise.reproduce.work import open_work
from statewise.training.optimizer import parameter_groups
from statewise.training.run_folder import run_from_dict

FILES = ROOT / "experiments" / "lra"
EACH = [(model, task) for model in SETTINGS for task in TASKS]

# d_model, layers, N, norm, placement, dropout, n_ssm, batch, lr, epochs, steps, warm-up, dt apart, lr of A and B,
# weight decay, least dt. Transcribed from configs/experiment/lra of state-spaces/s4: s4-*.yaml; S4D: old/v3-s4-*.yaml.
PUBLISHED: dict[str, dict[str, tuple[Any, ...]]] = {
    "s4": {
        "listops": (256, 6, 4, "batch", "post", 0, 1, 32, 0.01, 40, 120_000, 12_000, True, 1e-3, 0.05, 1e-3),
        "text": (256, 6, 4, "batch", "pre", 0, 1, 16, 0.01, 32, 50_000, 5_000, True, 1e-3, 0.05, 1e-3),
        "retrieval": (256, 6, 4, "batch", "pre", 0, 1, 64, 0.01, 20, 50_000, 5_000, True, 1e-3, 0.05, 1e-3),
        "image": (512, 6, 64, "batch", "post", 0.1, 1, 50, 0.01, 200, 180_000, 18_000, False, 1e-3, 0.05, 1e-3),
        "pathfinder": (256, 6, 64, "batch", "pre", 0, None, 64, 4e-3, 200, 500_000, 50_000, False, 1e-3, 0.05, 1e-3),
        "path-x": (256, 6, 64, "batch", "pre", 0, None, 16, 1e-3, 50, 500_000, 50_000, False, 1e-3, 0.05, 1e-4),
    },
    "s4d": {
        "listops": (128, 8, 64, "batch", "post", 0, None, 50, 0.01, 40, 80_000, 1_000, True, 1e-3, 0.05, 1e-3),
        "text": (256, 6, 64, "batch", "pre", 0, None, 16, 0.01, 32, 50_000, 1_000, True, 1e-3, 0.05, 1e-3),
        "retrieval": (256, 6, 64, "batch", "pre", 0, None, 64, 0.01, 20, 50_000, 2_500, True, 1e-3, 0.05, 1e-3),
        "image": (512, 6, 64, "layer", "post", 0.1, 2, 50, 0.01, 200, 180_000, 900, True, 1e-3, 0.05, 1e-3),
        "pathfinder": (256, 6, 64, "batch", "pre", 0, None, 64, 4e-3, 200, 500_000, 2_500, False, 1e-3, 0.03, 1e-3),
        "path-x": (256, 6, 64, "batch", "pre", 0, None, 16, 1e-3, 50, 500_000, 50_000, False, 5e-4, 0.05, 1e-4),
    },
}


def read(model: str, task: str) -> Any:
    return run_from_dict(json.loads((FILES / f"{model}-{task}.json").read_text("utf-8")), where=f"{model}-{task}.json")


@cache
def build(config: SequenceModelConfig) -> SequenceModel:
    """Without memory, and with one of its layers, which are all alike: 256 systems of S4 take their time."""
    assert len(set(config.layers)) == 1
    with torch.device("meta"):
        model = replace(config, layers=config.layers[:1]).build()
    assert isinstance(model, SequenceModel)
    return model


@pytest.mark.parametrize(("model", "task"), [(m, t) for m in PUBLISHED for t in TASKS])
def test_the_settings_are_those_of_the_published_files(model: str, task: str) -> None:
    (
        d_model,
        n_layers,
        n,
        norm,
        placement,
        dropout,
        n_systems,
        batch,
        lr,
        epochs,
        steps,
        warmup,
        dt_apart,
        dynamics_lr,
        decay,
        dt_low,
    ) = PUBLISHED[model][task]
    run = read(model, task)
    assert (run.model.d_model, len(run.model.layers)) == (d_model, n_layers)
    block = run.model.layers[0]
    assert (block.norm, block.placement, block.dropout, block.mlp) == (norm, placement, dropout, None)
    mixer = block.mixer
    assert (mixer.d_state, mixer.n_systems, mixer.dropout, mixer.dt_range) == (n, n_systems, dropout, (dt_low, 0.1))
    assert (mixer.bidirectional, mixer.gated_output, mixer.activation, mixer.initialization) == (
        True,
        True,
        "gelu",
        "legs",
    )
    assert block.tied_dropout == mixer.tied_dropout == (dropout > 0)
    assert run.model.final_norm == (None if placement == "post" else norm)
    assert (run.model.pooling, run.data.task, run.data.folder) == ("mean", task, None)
    train, adamw, schedule = run.train, run.train.optimizer, run.train.schedule
    assert (train.batch_size, adamw.lr, train.budget.steps, adamw.weight_decay) == (batch, lr, steps, decay)
    assert schedule.warmup * steps == pytest.approx(warmup)
    assert (adamw.betas, adamw.clip_norm, schedule.kind, schedule.min_ratio) == ((0.9, 0.999), None, "cosine", 0.0)
    assert train.reporting.evaluate_every == steps // epochs
    groups = {g.name: adamw.lr * g.lr_ratio for g in parameter_groups(build(run.model), adamw)}
    assert groups["dynamics"] == pytest.approx(dynamics_lr)
    assert groups.get("dt", groups["dynamics"]) == pytest.approx(lr if dt_apart else dynamics_lr)
    assert ("dt" in groups) is dt_apart


@pytest.mark.parametrize(("model", "task"), EACH)
def test_each_file_is_the_run_of_reproduce_and_builds(model: str, task: str) -> None:
    run = read(model, task)
    assert run == published_run(model, task)
    built = build(run.model)
    mixers = {"s4": S4Config, "s4d": S4DConfig, "h3": H3Config}
    assert all(isinstance(block.config.mixer, mixers[model]) for block in built.blocks)
    assert isinstance(run.model, PairClassifierConfig) == (task == "retrieval")
    assert run.model.n_classes == (10 if task in ("listops", "image") else 2)


def test_no_file_is_of_anything_else() -> None:
    assert {path.stem for path in FILES.glob("*.json")} == {f"{model}-{task}" for model, task in EACH}


def test_h3_has_the_settings_of_s4d() -> None:
    for task in TASKS:
        ours, theirs = read("h3", task), read("s4d", task)
        assert ours.train == theirs.train
        assert ours.model.layers[0].mixer == H3Config(
            dt_range=theirs.model.layers[0].mixer.dt_range, bidirectional=True
        )


def test_the_published_averages() -> None:
    """They are of more digits than the rows, but of these rows; a failure is counted as chance."""
    assert ACCURACY.keys() - AVERAGE.keys() == {"S4, the log of its code"}
    for name, stated in AVERAGE.items():
        mean = sum(50.0 if value is None else value for value in ACCURACY[name]) / len(TASKS)
        assert float(stated) == pytest.approx(mean, abs=0.051), name


def test_a_folder_goes_on_with_the_data_elsewhere(tmp_path: Path) -> None:
    """As on another machine; without a folder other data would be read."""
    config, run = LraSettings(tasks=("image",), folder=str(tmp_path / "a")), tmp_path / "run"
    open_work(run, "lra", config)
    (run / "parts" / "image-s4d-0.json").write_text('{"environment": {}, "seconds": 1.0, "result": {}}')
    open_work(run, "lra", replace(config, folder=str(tmp_path / "b")))
    with pytest.raises(ConfigError, match="was begun with another folder"):
        open_work(run, "lra", replace(config, folder=None))
    with pytest.raises(ConfigError, match="was begun with another minutes"):
        open_work(run, "lra", replace(config, folder=str(tmp_path / "b"), minutes=1.0))
