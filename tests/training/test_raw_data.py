"""A trained model takes raw data: evaluation, a loaded model and one that streams agree to the last digit."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import TESTS
from raw_data import run_on, shifted
from test_train_resume import StopAt, assert_same, everything
from training_runs import curve

import statewise as sw
from statewise import checkpoints, cli
from statewise.data import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError
from statewise.evaluate.labelled.classification import evaluate_classifier
from statewise.training import read_run, train_run
from statewise.training.tasks import open_task

OLD = TESTS / "classifier_0_1_0"  # four steps on the digits, by the first version


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_evaluate_load_predict_and_a_frozen_stream_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    file = shifted(tmp_path, dtype)
    data = LabelledDataConfig(source="arrays", folder=str(file))
    train_run(run_on(data, steps=40, batch_size=32), tmp_path / "run")
    assert cli.run(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["accuracy"] > 0.8

    with np.load(file) as arrays:
        rows = open_labelled(data).split("test").begins // 30  # the order in which evaluation reads them
        x, y = torch.from_numpy(arrays["test_x"][rows]), arrays["test_y"][rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sw.load(tmp_path / "run")
    assert model.config.classes == ("down", "up")
    with torch.no_grad():
        logits, _ = model(x)
        found = np.array(model.config.classes)[logits.argmax(-1)]
        assert float((found == y).mean()) == record["accuracy"]
        targets = torch.from_numpy(np.searchsorted(model.config.classes, y))
        assert float(torch.nn.functional.cross_entropy(logits, targets)) == record["loss"]
        answers = sw.predictor(tmp_path / "run").predict(x)
        assert torch.equal(torch.from_numpy(answers.logits), logits)  # type: ignore[union-attr]
        assert (answers.labels == found).all()  # type: ignore[union-attr]
        frozen = model.freeze()
        assert torch.equal(frozen(x)[0], logits)
        state, again = frozen.initial_state(len(x)), model.initial_state(len(x))
        for step in x.split(1, 1):
            so_far, state = frozen(step, state)
            expected, again = model(step, again)
            assert torch.equal(so_far, expected)
        assert torch.equal(so_far.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("fields", [{}, {"permuted": True}, {"normalize": "series"}, {"normalize": "none"}])
def test_a_model_that_scales_is_as_one_on_scaled_rows(fields: dict[str, Any]) -> None:
    """What 0.1.0 did, bit for bit: the loss of a batch and its gradients."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    task = open_task(run_on(LabelledDataConfig(**fields)))
    torch.manual_seed(0)
    model: Any = task.run.model.build()
    plain = replace(model.config, input=None).build()
    plain.load_state_dict(model.state_dict())
    scaled = open_labelled(task.run.data).split("train")
    batch = task.batches[0]
    assert batch.inputs.dtype == torch.uint8
    rows = [i for x in batch.inputs for i in range(len(scaled)) if np.array_equal(scaled.raw.sequence(i), x)][:16]
    before = batch._replace(inputs=torch.from_numpy(scaled.inputs(np.array(rows))))
    assert len(rows) == 16
    losses = []
    for one, given in ((model, batch), (plain, before)):
        loss, _ = task.loss(one, given, None)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, plain.get_parameter(name).grad), name
    split = open_labelled(task.run.data).split("validation")  # scaled, and read raw by a model that scales
    results = [evaluate_classifier(one, split, max_sequences=40) for one in (model, plain)]
    assert results[0].loss == results[1].loss


def test_a_stopped_run_keeps_its_numbers(tmp_path: Path) -> None:
    config = run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path))), steps=6)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([2, 99]):
        train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))
    assert read_run(tmp_path / "run").model.input is None, "run.json holds what was asked for"  # type: ignore[attr-defined]


def test_rows_in_pieces_are_refused_where_a_row_is_scaled_as_a_whole(tmp_path: Path) -> None:
    data = LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path)), normalize="series")
    config = run_on(data)
    parallel = replace(config.train, parallel=replace(config.train.parallel, sequence=2))
    with pytest.raises(ConfigError, match=r"train.parallel.sequence=2 cuts rows in pieces"):
        open_task(replace(config, train=parallel))


# Runs of 0.1.0
@pytest.fixture
def old(tmp_path: Path) -> Path:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    shutil.copytree(OLD, tmp_path / "old")
    return tmp_path / "old"


def test_a_checkpoint_of_the_first_version_says_what_it_lacks(old: Path) -> None:
    with pytest.warns(UserWarning, match=r"written by Statewise 0.1.0, which saved no scaling and no names") as caught:
        model: Any = sw.load(old)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert (model.config.input, model.config.classes) == (None, ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.load(TESTS / "run_0_1_0" / "run")  # a language model lacks nothing


def test_a_run_of_the_first_version_is_evaluated_as_before(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (expected,) = curve(old, "evaluation")[-1:]
    latest = ["evaluate", str(old), "--split", "validation", "--max-items", "40", "--json"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.run(latest) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["accuracy"] == expected["accuracy"]
    assert record["loss"] == pytest.approx(expected["loss"], rel=1e-6)  # of another processor


@pytest.mark.filterwarnings("ignore:.*was written by Statewise 0.1.0")
def test_a_run_of_the_first_version_goes_on_as_before_and_then_lacks_nothing(old: Path) -> None:
    expected = everything(old)
    shutil.rmtree(old / "checkpoints" / "step-00000004")
    train_run(None, old, resume=True)
    losses = [[line["loss"] for line in curve(folder, "train")] for folder in (old, OLD)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    # Close and not equal: the first version's numbers are those of another processor, whose sums have another order
    torch.testing.assert_close(everything(old), expected, rtol=1e-5, atol=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model: Any = sw.load(checkpoints.resolve(old, "latest"))
    assert model.config.classes == tuple(map(str, range(10)))
    assert model.config.input.scaling == "dataset"
    assert np.float32(model.config.input.scale[0]) == model.config.input.scale[0]
