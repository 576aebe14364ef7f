"""Tasks of the Long Range Arena in training: runs, resume and evaluation, by the library and the command line."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_train_resume import StopAt, assert_same, everything
from training_runs import curve, train_config

from statewise import cli
from statewise.data.long_range import LongRangeDataConfig
from statewise.data.progress import on_terminal
from statewise.errors import ConfigError
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.training import RunConfig, read_run, train_run
from statewise.training.presets import fit_model
from statewise.training.tasks import open_task

LAYERS = (BlockConfig(mixer=S4DConfig(d_state=8, dt_range=(1e-2, 1e-1)), norm="layer"),)
LISTS = LongRangeDataConfig(
    min_length=5, max_length=40, max_depth=3, max_args=4, n_train=256, n_validation=32, n_test=32
)
CURVES = LongRangeDataConfig(task="pathfinder-gen", n_train=64, n_validation=16, n_test=16)


def listing(data: LongRangeDataConfig = LISTS, **settings: Any) -> RunConfig:
    model = SequenceClassifierConfig(n_classes=10, vocab_size=18, d_model=16, layers=LAYERS)
    if data.task == "pathfinder-gen":
        model = SequenceClassifierConfig(n_classes=2, d_input=1, d_model=8, layers=LAYERS)
    fields: dict[str, Any] = {"steps": 6, "batch_size": 8, "log_every": 1, "save_minutes": None, "evaluate_items": 16}
    return RunConfig(model=model, data=data, train=train_config(**{**fields, **settings}))


@pytest.mark.parametrize("data", [LISTS, CURVES], ids=lambda data: data.task)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, data: LongRangeDataConfig) -> None:
    config = listing(data, steps=7, evaluate_every=4, keep_last=9, keep_best=False)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([3, 99]):
        train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))


def test_short_lists_are_learned(tmp_path: Path) -> None:
    """One operator on two digits: far better than the most frequent value after seconds."""
    data = LongRangeDataConfig(
        min_length=1, max_length=5, max_depth=2, max_args=2, n_train=340, n_validation=30, n_test=30
    )
    run = listing(data, steps=150, lr=2e-2, batch_size=32, evaluate_items=None, evaluate_every=150)
    train_run(run, tmp_path / "run")
    assert curve(tmp_path / "run", "evaluation")[-1]["accuracy"] > 0.35


def test_models_are_fitted_to_the_data() -> None:
    task = open_task(listing())
    assert task.model_fields(LISTS) == {"d_input": None, "vocab_size": 18, "n_classes": 10}
    assert task.model_fields(CURVES) == {"d_input": 1, "vocab_size": None, "n_classes": 2}
    assert fit_model(listing()) == listing()
    model = SequenceClassifierConfig(n_classes=10, vocab_size=17, d_model=16, layers=LAYERS)
    with pytest.raises(ConfigError, match=r"model.vocab_size=17, but the data need 18"):
        open_task(replace(listing(), model=model))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = random.Random(0)
    for name in ("aa", "bb"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(20):
            text = "".join(generator.choices(name + "cd", k=generator.randint(5, 25)))
            (tmp_path / "own" / name / f"{i}.txt").write_text(text)
    return tmp_path / "own"


def test_pairs_train_and_are_evaluated(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = LongRangeDataConfig(task="retrieval-folder", folder=str(folder), n_train=64, n_test=3)
    model = PairClassifierConfig(n_classes=2, vocab_size=258, d_model=8, layers=LAYERS)
    run = RunConfig(model=model, data=data, train=train_config(steps=4, batch_size=8, evaluate_items=4))
    train_run(run, tmp_path / "run")
    assert cli.run(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sequences"] == record["predictions"] == 3
    single = SequenceClassifierConfig(n_classes=2, vocab_size=258, d_model=8, layers=LAYERS)
    with pytest.raises(ConfigError, match=r"pairs of documents"):
        open_task(replace(run, model=single))


def test_the_command_line(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    layers = [{"type": "S4DConfig", "d_state": 8}]
    model = {"type": "SequenceClassifierConfig", "n_classes": 2, "vocab_size": 258, "d_model": 8, "layers": layers}
    data = {"type": "LongRangeDataConfig", "task": "text-folder"}
    settings = {"steps": 2, "batch_size": 4}
    config.write_text(json.dumps({"model": model, "data": data, "train": settings}))
    common = ["train", "--config", str(config), "--out", str(tmp_path / "run")]
    assert cli.run(common) == 2
    assert "the task 'text-folder' reads <class>/*.txt, " in capsys.readouterr().err
    assert cli.run([*common, "--data-dir", str(tmp_path / "nowhere")]) == 2
    assert "no text-folder in" in capsys.readouterr().err
    assert cli.run([*common, "--set", "data.task=path-finder"]) == 2
    assert "task='path-finder' is unknown; did you mean 'pathfinder'? Use one of: " in capsys.readouterr().err
    assert cli.run([*common, "--data-dir", str(folder)]) == 0
    assert read_run(tmp_path / "run").data == LongRangeDataConfig(task="text-folder", folder=str(folder))


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert on_terminal("rows") is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = on_terminal("making the rows,")
    assert show is not None
    show(500, 1000)
    show(1000, 1000)
    assert capsys.readouterr().err == "\rmaking the rows, 500 of 1,000\rmaking the rows, 1,000 of 1,000\n"
