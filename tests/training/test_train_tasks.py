"""What training does for text it does for any task."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_train_resume import StopAt, assert_same, disturb, everything
from toy_task import Toy, ToyBatch, ToyBatches, ToyConfig, ToyDataConfig, ToyTask, toy, toy_run
from training_runs import Recorder, curve, small_model, small_run, train_config, with_train

import statewise as sw
from statewise import checkpoints
from statewise.data.base import DataConfig
from statewise.errors import CheckpointError, ConfigError, DataError, InputError, TrainingError
from statewise.plots.style import figure
from statewise.training import RunConfig, read_metrics, read_run, train_run
from statewise.training.tasks import Task, open_task

pytestmark = pytest.mark.usefixtures(toy.__name__)


def test_it_learns_and_says_so(tmp_path: Path) -> None:
    recorder = Recorder()
    config = toy_run(steps=60, lr=3e-2, log_every=20, evaluate_every=20)
    result = train_run(config, tmp_path / "run", reporter=recorder)
    assert (result.step, result.metric, result.exit_code) == (60, "accuracy", 0)
    start, end = recorder.events[0], recorder.events[-1]
    assert start["sequences_per_step"] == 8
    assert (start["train_sequences"], start["validation_sequences"], start["data"]) == (64, 64, "64 points")
    assert "480 sequences in" in end["message"]
    found = curve(tmp_path / "run")
    assert [line["sequences"] for line in found if line["kind"] == "train"] == [160, 320, 480]
    evaluations = [line for line in found if line["kind"] == "evaluation"]
    assert "right" not in evaluations[-1], "metrics are numbers"
    seconds = [line["seconds"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert seconds == sorted(seconds)
    assert seconds[-1] < 1e6
    assert evaluations[-1]["accuracy"] == result.validation
    assert result.validation is not None
    assert result.validation > 0.9
    assert read_run(tmp_path / "run") == config
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (written["model"]["type"], written["data"]["type"]) == ("ToyConfig", "ToyDataConfig")

    model = checkpoints.load(checkpoints.resolve(tmp_path / "run"))
    assert isinstance(model, Toy)
    assert int(model.count.num_batches_tracked) == 60


@pytest.mark.parametrize("looks", [1, 3])
def test_bit_for_bit(tmp_path: Path, looks: int) -> None:
    """Also however often somebody looks, though this evaluation draws numbers."""
    config = toy_run(steps=12, accumulation=2, evaluate_every=looks, keep_last=9, keep_best=False)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([1, 5, 6, 99]):
        disturb()
        result = train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
        assert result.signal == (None if stop == 99 else signal.SIGTERM)
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))
    seldom = with_train(config, evaluate_every=None)
    train_run(seldom, tmp_path / "seldom")
    assert curve(tmp_path / "seldom", "train") == curve(tmp_path / "straight", "train")


def test_the_best_has_most_where_more_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.75, 0.75, 0.25])
    monkeypatch.setattr(ToyTask, "validate", lambda *a: {"loss": 1.0, "accuracy": next(scores)})
    train_run(toy_run(steps=4, evaluate_every=1, save_every=1, keep_last=1), tmp_path / "run")
    assert [line["best"] for line in curve(tmp_path / "run", "evaluation")] == [True, True, False, False]
    # Of equal checkpoints the earlier one is kept, as the loop calls it the best
    assert checkpoints.resolve(tmp_path / "run", "best").name == "step-00000002"
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-00000002",
        "step-00000004",
    ]
    found = checkpoints.list_checkpoints(tmp_path / "run")
    assert [(c.validation, c.metric, c.higher_is_better) for c in found] == [
        (0.75, "accuracy", True),
        (0.25, "accuracy", True),
    ]


def test_a_validation_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyTask, "validate", lambda *a: {"loss": float("nan"), "accuracy": 0.5})
    with pytest.raises(TrainingError, match=r"step 8: the validation loss is nan; no checkpoint.* --lr "):
        train_run(toy_run(), tmp_path / "run")


def test_without_validation(tmp_path: Path) -> None:
    config = replace(toy_run(), data=ToyDataConfig(validation=False))
    result = train_run(config, tmp_path / "run")
    assert (result.validation, curve(tmp_path / "run", "evaluation")) == (None, [])


def test_a_budget_in_epochs(tmp_path: Path) -> None:
    """64 points in batches of 8 are 8 batches; two of them make a step here."""
    result = train_run(toy_run(steps=None, epochs=2.1, accumulation=2), tmp_path / "run")
    assert result.step == 9
    rates = [line["lr"] for line in curve(tmp_path / "run", "train")]
    train_run(toy_run(steps=9, accumulation=2), tmp_path / "steps")
    assert rates == [line["lr"] for line in curve(tmp_path / "steps", "train")]
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "steps"))
    assert train_run(toy_run(steps=5, epochs=2.1, accumulation=2), tmp_path / "both").step == 5
    assert train_run(toy_run(steps=None, epochs=3, accumulation=2), tmp_path / "run", resume=True).step == 12
    stopped = train_run(toy_run(steps=None, epochs=1e-9), tmp_path / "short")
    assert stopped.step == 1


def test_the_rate_of_dynamics_has_a_limit(tmp_path: Path) -> None:
    recorder = Recorder()
    train_run(toy_run(steps=1, lr=0.01, dynamics_lr_max=1e-3), tmp_path / "run", reporter=recorder)
    rates = {group["group"]: group["lr"] for group in recorder.events[0]["groups"]}
    assert (rates["dynamics"], rates["maps"]) == (pytest.approx(1e-3), pytest.approx(0.01))
    train_run(toy_run(steps=1, lr=1e-4, dynamics_lr_max=1e-3), tmp_path / "low", reporter=recorder)
    assert recorder.events[-1]["kind"] == "end"
    (start,) = [event for event in recorder.events[1:] if event["kind"] == "start"]
    assert {group["lr"] for group in start["groups"]} == {1e-4}


@pytest.mark.parametrize("how", ["data", "layer"])
def test_a_loss_that_is_not_finite_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def loss(self: ToyTask, model: Toy, batch: ToyBatch, state: Any) -> Any:
        if how == "data":
            return original(self, model, batch._replace(x=batch.x / 0), state)
        if not model.layer.mixer._forward_hooks:
            model.layer.mixer.register_forward_hook(lambda module, args, output: (output[0] / 0, output[1]))
        return original(self, model, batch, state)

    original = ToyTask.loss
    train_run(toy_run(steps=2), tmp_path / "run")
    monkeypatch.setattr(ToyTask, "loss", loss)
    said = "is embedding .Linear.; its input was not finite either" if how == "data" else "is layer.mixer"
    with pytest.raises(
        TrainingError, match=f"step 3: the loss is nan; the first layer whose output is not finite {said}"
    ):
        train_run(toy_run(steps=4), tmp_path / "run", resume=True)


# What is refused
def test_what_belongs_to_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.length=64, but the sequences of ToyDataConfig have their own"):
        toy_run(length=64)
    with pytest.raises(ConfigError, match=r"carry_state=True, but the batches of ToyDataConfig are sequences of their"):
        train_run(toy_run(carry_state=True), tmp_path / "run")
    assert small_run(tmp_path, length=None).train.length == 512


def test_model_and_data_have_to_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model is a LanguageModelConfig, but ToyDataConfig needs a ToyConfig"):
        train_run(replace(toy_run(), model=small_model()), tmp_path / "a")
    with pytest.raises(ConfigError, match="model is a ToyConfig, but TextDataConfig needs a LanguageModelConfig"):
        train_run(replace(small_run(tmp_path), model=ToyConfig()), tmp_path / "b")
    assert not (tmp_path / "a" / "run.json").exists()
    with pytest.raises(ConfigError, match=r"RunConfig\.data='plane' has the wrong type .*; expected DataConfig"):
        RunConfig(model=ToyConfig(), data="plane", train=train_config(steps=1))  # type: ignore[arg-type]

    @dataclass(frozen=True, kw_only=True)
    class Stray(DataConfig):
        def with_absolute_paths(self) -> Stray:
            return self

    with pytest.raises(ConfigError, match=r"Stray, which has no task; use one of .*TextDataConfig"):
        open_task(replace(toy_run(), data=Stray()))


def test_other_data_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_run(toy_run(), tmp_path / "run")
    monkeypatch.setattr(ToyTask, "fingerprint", "another")
    with pytest.raises(DataError, match=r"the plane at 'plane' is not the one that .*step-00000008 was trained on"):
        train_run(None, tmp_path / "run", resume=True)


def test_checkpoints_of_another_kind_are_refused(tmp_path: Path) -> None:
    sw.save(ToyConfig().build(), tmp_path / "toy")
    with pytest.raises(
        CheckpointError, match="a different architecture: a ToyConfig there and a LanguageModelConfig here"
    ):
        checkpoints.load_into(small_model().build(), tmp_path / "toy")
    from statewise.data.tokenizers import ByteTokenizer

    with pytest.raises(InputError, match="a Toy does not read text; save it without a tokenizer"):
        sw.save(ToyConfig().build(), tmp_path / "other", tokenizer=ByteTokenizer())
    assert not (tmp_path / "other").exists()


def test_a_class_that_is_not_registered_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statewise.models.registry import CONFIG_TYPES

    monkeypatch.delitem(CONFIG_TYPES, "ToyConfig")
    with pytest.raises(ConfigError, match=r"model\.type='ToyConfig' is unknown"):
        sw.save(ToyConfig().build(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_defaults_of_a_task() -> None:
    task = open_task(toy_run())
    assert (task.tokenizer, task.from_loss(1.0), task.units_in(3)) == (None, {}, 24)
    (table,) = Task.tables(task, {"checkpoint": "c", "split": "test", "loss": 0.5, "n_rows": 1200, "flag": True})
    assert (table.title, table.rows) == ("test split, c", [("loss", "0.5000"), ("n rows", "1,200")])
    assert isinstance(task.batches, ToyBatches)
    with pytest.raises(ConfigError, match="a Toy has no picture to draw; leave out --plot"):
        Task.plot(task, Path("x.png"), model=ToyConfig().build(), split="test", record={})


def test_plots_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, message in (("a.jpeg", "ends in one of .png"), ("no/a.png", "there is no folder")):
        with pytest.raises(ConfigError, match=message), figure(tmp_path / name):
            pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "statewise\[plot\]"'), figure(tmp_path / "a.png"):
        pass
    assert not list(tmp_path.iterdir())
