"""The experiment that trains our models on the published rows: the rows are what the training and the test read."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from places import ROOT

from statewise.data.synthetic_languages import (
    LANGUAGES,
    AssociativeRecallConfig,
    LanguageSplit,
    Rows,
    open_synthetic_language,
)
from statewise.reproduce.h3_synthetics import TASKS, H3SyntheticsSettings, run_config
from statewise.training.tasks import open_task

FOLDER = ROOT / "experiments"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(LanguageSplit, "rows", LanguageSplit.rows)  # so that it is put back
    spec = importlib.util.spec_from_file_location("h3_on_published_rows", FOLDER / "h3_on_published_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_made_of_inputs_and_targets(experiment, task: str) -> None:
    split = open_synthetic_language(LANGUAGES[task](n_train=200)).split("train")
    drawn = split.rows(np.arange(200))
    made = experiment.as_rows(drawn.inputs, split.targets(drawn))
    for name, found, expected in zip(Rows._fields, made, drawn):
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_run_reads_the_given_rows(experiment) -> None:
    config = H3SyntheticsSettings(tasks=("associative-recall",), epochs=(1,), n_train=64, n_test=8, n_validation=8)
    run = run_config(config, "associative-recall", "h3", 0)
    other = open_synthetic_language(AssociativeRecallConfig(seed=5))
    rows = {name: other.split(name).rows(np.arange(64)) for name in ("train", "validation", "test")}
    before = open_task(run).data.fingerprint
    experiment.use(rows)
    task = open_task(run)
    read = {tuple(row) for step in range(2) for row in task.batches[step].inputs.tolist()}
    assert read == {tuple(row) for row in rows["train"].inputs.tolist()}
    assert task.data.fingerprint != before  # so that nobody goes on with other rows
