"""An own loss in our loop: named by the run, resumed by its name, refused where it is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_programs import ran
from torch import Tensor

import statewise as sw
from statewise.training import Task, read_run, register_task, train_run
from statewise.training.tasks.classification import ClassificationTask
from statewise.training.tasks.own import OWN

LAYERS = (sw.S4DConfig(d_state=4),)


@register_task
class MarginTask(ClassificationTask):
    """The multi-class hinge loss."""

    margin = 1.0

    def loss(self, model: Any, batch: Any, state: Any) -> tuple[Tensor, Any]:
        scores, state = model(batch.inputs, state, lengths=batch.lengths)
        return torch.nn.functional.multi_margin_loss(scores, batch.targets, margin=self.margin), state


def own_data() -> tuple[np.ndarray, np.ndarray]:
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    return rng.normal(size=(60, 8)) + 3 * y[:, None], y


CONFIG = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=8, layers=LAYERS)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in sw.training.read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"]


def test_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    settings = {"train.reporting.log_every": 1, "train.optimizer.lr": 1e-2}
    run = sw.train(CONFIG, own_data(), out=tmp_path / "whole", steps=8, task=MarginTask, set=settings)
    assert read_run(run.folder).task == "MarginTask"
    usual = sw.train(CONFIG, own_data(), out=tmp_path / "usual", steps=8, set=settings)
    assert losses(usual.folder)[0] != losses(run.folder)[0]
    part = sw.train(
        CONFIG,
        own_data(),
        out=tmp_path / "part",
        steps=8,
        task="MarginTask",
        set=settings,
        callbacks=lambda record: record.get("kind") == "train" and record["step"] == 3,
    )
    assert part.stopped
    train_run(None, part.folder, resume=True)
    assert losses(part.folder) == losses(run.folder)
    assert part.evaluate("test")["accuracy"] == run.evaluate("test")["accuracy"]


def test_where_it_is_not_known_the_run_is_refused(tmp_path: Path) -> None:
    """And not trained on by another loss; its model is an ordinary one."""
    run = sw.train(CONFIG, own_data(), out=tmp_path / "run", steps=2, task=MarginTask)
    code = "import sys, statewise.cli; statewise.cli.main()"
    words = ["train", "--resume", str(run.folder), "--steps", "4"]
    done = ran(["-c", code, *words])
    assert done.returncode == 2, done.stderr
    assert "task='MarginTask' is not registered here; import the file" in " ".join(done.stderr.split())
    del OWN["MarginTask"]
    try:
        assert sw.predictor(run.folder).predict(own_data()[0]).labels.shape == (60,)
        with pytest.raises(sw.ConfigError, match="task='MarginTask' is not registered"):
            train_run(None, run.folder, resume=True)
    finally:
        register_task(MarginTask)
    usual = replace(read_run(run.folder), task=None)
    with pytest.raises(sw.ConfigError, match=r"begun with another task \(task was 'MarginTask', now None"):
        train_run(usual, run.folder, resume=True)


OWN_FILE = """
import sys
from pathlib import Path
import numpy as np
import torch
import statewise as sw
from statewise.cli import main
from statewise.training import register_task
from statewise.training.tasks.classification import ClassificationTask

@register_task
class SmoothTask(ClassificationTask):
    def loss(self, model, batch, state):
        scores, state = model(batch.inputs, state, lengths=batch.lengths)
        return torch.nn.functional.cross_entropy(scores, batch.targets, label_smoothing=0.1), state

if __name__ == "__main__":
    main()
"""


def test_a_file_of_ones_own_is_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_FILE)
    x, y = own_data()
    np.savez(tmp_path / "own.npz", train_x=x, train_y=y)
    for words in (
        "train --data own.npz --steps 2 --set task=SmoothTask --out run",
        "train --resume run --steps 3",
    ):
        done = ran(["mine.py", *words.split()], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert read_run(tmp_path / "run").task == "SmoothTask"


def test_registering() -> None:
    assert register_task(MarginTask) is MarginTask  # as a cell of a notebook that is run again
    for wrong in (3, int, CONFIG):
        with pytest.raises(sw.ConfigError, match="register_task takes a child of Task"):
            register_task(wrong)  # type: ignore[type-var]
    with pytest.raises(sw.ConfigError, match=r"HalfTask lacks .*loss.*; write them"):
        register_task(type("HalfTask", (Task,), {}))
    other = type("MarginTask", (ClassificationTask,), {"__module__": "another"})
    with pytest.raises(sw.ConfigError, match="called MarginTask is registered already, from"):
        register_task(other)


def test_it_fits_the_model_and_the_data(tmp_path: Path) -> None:
    regressor = sw.SequenceRegressorConfig(d_output=1, d_input=1, d_model=8, layers=LAYERS)
    x, y = own_data()
    with pytest.raises(sw.ConfigError, match="but MarginTask needs a SequenceClassifierConfig"):
        sw.train(regressor, (x, y.astype(float)), out=tmp_path / "a", steps=2, task=MarginTask)
    (tmp_path / "text.txt").write_text("so it goes " * 300)
    with pytest.raises(sw.ConfigError, match="but MarginTask needs a"):
        sw.train("language", str(tmp_path / "text.txt"), out=tmp_path / "b", steps=2, task=MarginTask)
    with pytest.raises(sw.ConfigError, match=r"task='MarginTsk' is not registered here.*did you mean 'MarginTask'"):
        sw.train(CONFIG, (x, y), out=tmp_path / "c", steps=2, task="MarginTsk")
    assert not list(tmp_path.glob("[ac]"))
