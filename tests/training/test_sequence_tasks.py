"""Classification and regression of sequences in training: runs, exact resume, evaluation, tables, plots, presets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_train_resume import StopAt, assert_same, everything
from training_runs import Recorder, curve, train_config

from statewise import checkpoints, cli
from statewise.configuration import assign
from statewise.data.labelled import LabelledDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.errors import ConfigError, DataError
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training import RunConfig, read_run, train_run
from statewise.training.presets import PRESETS, fit_model
from statewise.training.tasks import open_task
from statewise.training.tasks.classification import ClassificationTask
from statewise.training.tasks.regression import RegressionTask

LAYERS = (BlockConfig(mixer=S4DConfig(d_state=8, dt_range=(1e-2, 1e-1)), norm="layer"),)
DIGITS = LabelledDataConfig()
CLASSIFIER = SequenceClassifierConfig(n_classes=10, d_input=1, d_model=32, layers=LAYERS)
ADDING = SequenceRegressorConfig(d_output=1, d_input=2, d_model=32, layers=LAYERS)
COPYING = SequenceClassifierConfig(
    n_classes=3, vocab_size=5, d_model=16, layers=(Mamba2Config(d_state=8, d_head=8),), pooling=None
)


def run(
    model: SequenceModelConfig = CLASSIFIER,
    data: Any = DIGITS,
    **settings: Any,
) -> RunConfig:
    fields = {"batch_size": 16, "log_every": 1, "save_minutes": None, "evaluate_items": 40, "lr": 1e-2, **settings}
    if not {"steps", "epochs"} & set(fields):
        fields["steps"] = 4
    return RunConfig(model=model, data=data, train=train_config(**fields))


def adding(**settings: Any) -> RunConfig:
    return run(ADDING, MemoryDataConfig(task="adding", length=20, n_train=512, n_validation=32, n_test=16), **settings)


def copying(**settings: Any) -> RunConfig:
    data = MemoryDataConfig(task="copying", length=12, n_symbols=3, n_copied=3, n_train=64, n_test=16)
    return run(COPYING, data, **settings)


@pytest.fixture(autouse=True)
def _scikit_learn() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def test_a_classifier_learns_digits_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    result = train_run(run(steps=80, batch_size=32, evaluate_every=40, lr=3e-2), tmp_path / "run", reporter=recorder)
    assert (result.metric, result.step) == ("accuracy", 80)
    assert recorder.events[0]["train_sequences"] == 1295
    assert "10 classes, 1 number a step" in recorder.events[0]["data"]
    assert curve(tmp_path / "run", "train")[-1]["loss"] < 1.9  # of 2.3 for chance
    evaluation = curve(tmp_path / "run", "evaluation")[-1]
    assert evaluation["sequences"] == 40
    assert evaluation["accuracy"] == result.validation
    assert isinstance(checkpoints.load(checkpoints.resolve(tmp_path / "run")), SequenceClassifier)
    assert read_run(tmp_path / "run") == run(steps=80, batch_size=32, evaluate_every=40, lr=3e-2)

    assert cli.run(["evaluate", str(tmp_path / "run"), "--split", "test", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sequences"] == 359
    assert sum(map(sum, record["confusion"])) == 359
    right = sum(row[i] for i, row in enumerate(record["confusion"]))
    assert record["accuracy"] == right / 359
    assert record["accuracy"] > 0.3  # chance is 0.1


def test_tables_and_plot(tmp_path: Path) -> None:
    task = open_task(run())
    assert isinstance(task, ClassificationTask)
    record = {"checkpoint": "here", "split": "test", **task.evaluate(CLASSIFIER.build(), "test", max_items=50)}
    figures, by_class, confusion = task.tables(record)
    assert figures.rows[0] == ("accuracy", f"{record['accuracy']:.2%}")
    assert "50 sequences in" in figures.notes[0]
    assert [row[0] for row in by_class.rows] == [str(i) for i in range(10)]
    assert sum(int(row[-1]) for row in by_class.rows) == 50
    assert sum(int(cell) for row in confusion.rows for cell in row[1:] if cell) == 50
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    task.plot(tmp_path / "x.png", model=CLASSIFIER.build(), split="test", record=record)
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("make", [run, adding, copying])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, make: Any) -> None:
    config = make(steps=9, evaluate_every=4, keep_last=9, keep_best=False)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([1, 5, 99]):
        train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))


def test_other_data_are_not_resumed(tmp_path: Path) -> None:
    train_run(adding(), tmp_path / "run")
    other = adding(steps=6)
    other = replace(other, data=replace(other.data, seed=5))
    with pytest.raises(ConfigError, match="seed"):
        train_run(other, tmp_path / "run", resume=True)


def test_a_regressor_learns_to_add(tmp_path: Path) -> None:
    config = adding(epochs=8, batch_size=32, evaluate_items=None, lr=3e-2)
    result = train_run(config, tmp_path / "run")
    assert result.metric == "mse"
    assert result.validation is not None
    assert result.validation < 0.1  # 1/6 for always answering 1
    task = open_task(config)
    assert isinstance(task, RegressionTask)
    model: Any = checkpoints.load(checkpoints.resolve(tmp_path / "run"))
    record = {"checkpoint": "x", "split": "test", **task.evaluate(model, "test")}
    assert record["sequences"] == record["predictions"] == 16
    assert record["r2"] == pytest.approx(1 - record["nrmse"] ** 2)
    assert ("mse", f"{record['mse']:.4f}") in task.tables(record)[0].rows


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    config = replace(adding(), data=MemoryDataConfig(task="adding", length=20, n_train=64, n_validation=0, n_test=0))
    task = open_task(config)
    assert task.sizes() == {"train": 64}
    assert train_run(config, tmp_path / "run").validation is None
    with pytest.raises(DataError, match=r"data\.n_test is 0"):
        task.evaluate(ADDING.build(), "test")
    with pytest.raises(DataError, match="has 512 sequences, fewer than batch_size 600"):
        train_run(adding(batch_size=600), tmp_path / "other")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (replace(CLASSIFIER, n_classes=9), LabelledDataConfig(), r"model\.n_classes=9, but the data need 10; set"),
        (replace(CLASSIFIER, d_input=3), LabelledDataConfig(), r"model\.d_input=3, but the data need 1"),
        (replace(CLASSIFIER, pooling=None), LabelledDataConfig(), r"model\.pooling=null gives an output for each step"),
        (ADDING, LabelledDataConfig(), "the targets of the data are classes; use a SequenceClassifierConfig"),
        (CLASSIFIER, MemoryDataConfig(task="adding"), "the targets of the data are numbers; use a SequenceRegressorC"),
        (ADDING, MemoryDataConfig(task="delay"), r"model\.d_input=2, but the data need 1"),
        (
            replace(ADDING, d_input=1),
            MemoryDataConfig(task="delay"),
            r'model\.pooling="mean", but the data need null; set model\.pooling=null',
        ),
    ],
)
def test_model_and_data_have_to_fit(model: SequenceModelConfig, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_task(run(model, data))


def test_a_language_model_is_refused() -> None:
    from training_runs import small_model

    with pytest.raises(ConfigError, match="needs a SequenceClassifierConfig or SequenceRegressorConfig"):
        open_task(RunConfig(model=small_model(), data=LabelledDataConfig(), train=train_config(steps=1)))


def test_a_preset_takes_the_shape_of_other_data() -> None:
    pytest.importorskip("aeon", reason="aeon is not installed")
    config = PRESETS["digits"]()
    fitted = fit_model(replace(config, data=LabelledDataConfig(source="ucr:JapaneseVowels")))
    assert isinstance(fitted.model, SequenceClassifierConfig)
    assert (fitted.model.n_classes, fitted.model.d_input, fitted.model.pooling) == (9, 12, "mean")
    copied = fit_model(replace(config, data=MemoryDataConfig(task="copying")))
    assert isinstance(copied.model, SequenceClassifierConfig)
    assert (copied.model.n_classes, copied.model.vocab_size, copied.model.d_input) == (8, 10, None)
    assert copied.model.pooling is None
    open_task(copied)
    with pytest.raises(ConfigError, match="the targets of the data are numbers; use a SequenceRegressorConfig"):
        open_task(fit_model(replace(config, data=MemoryDataConfig(task="adding"))))


def test_presets_open_and_go_through_json() -> None:
    for name in ("digits", "acsf1", "fashion-mnist", "spoken-digits"):
        config = PRESETS[name]()
        assert fit_model(config) == config if name == "digits" else True
        assert assign(config, []) == config


@pytest.mark.slow
def test_the_digits_preset_reaches_its_accuracy(tmp_path: Path) -> None:
    config = PRESETS["digits"]()
    train_run(config, tmp_path / "run")
    task = open_task(config)
    model: Any = checkpoints.load(checkpoints.resolve(tmp_path / "run"))
    assert task.evaluate(model, "test")["accuracy"] >= 0.97
