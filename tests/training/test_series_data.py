"""A forecaster's checkpoint knows its data: columns, grid, calendar, and what its covariates were scaled by."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecast_runs import sales, sales_run
from training_runs import with_train

import statewise as sw
from statewise import cli
from statewise.checkpoints.manifest import CONFIG_FILE, encode_json
from statewise.data.series import open_series
from statewise.errors import ConfigError, DataError
from statewise.models.registry import model_from_dict, model_to_dict
from statewise.models.series_input import SeriesInputConfig
from statewise.training import open_task, train_run


@pytest.mark.parametrize("structural", [False, True])
def test_a_checkpoint_says_what_its_tables_hold(tmp_path: Path, structural: bool) -> None:
    config = sales_run(tmp_path, structural)
    train_run(config, tmp_path / "run")
    series = sw.load(tmp_path / "run").config.series
    data = open_series(config.data)  # type: ignore[arg-type]
    assert series == data.input
    raw = np.array(
        [float(r.split(";")[-1].replace(",", ".")) for r in Path(config.data.source).read_text().split()[1:]]
    )  # type: ignore[attr-defined]
    in_training = np.concatenate([raw[:42], raw[60:102]])
    assert (series.mean, series.deviation) == (
        (pytest.approx(in_training.mean()),),
        (pytest.approx(in_training.std()),),
    )
    assert (series.time, series.series, series.targets) == ("month", "shop", ("sold", "back"))
    assert (series.unit, series.step, series.season, series.dates) == ("months", 1, 12, True)
    assert series.origin == np.datetime64("2018-01-01", "s").astype(int)
    assert (series.history, series.min_history) == (12, 12)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["model"]["series"] is None, "what was asked for"


def test_other_data_are_scaled_as_the_training_data_were(tmp_path: Path) -> None:
    """The same rows with promotions 1,000 higher are other data: they are not standardised anew."""
    config = sales_run(tmp_path)
    task = open_task(config)
    other = replace(config, data=replace(config.data, source=str(sales(tmp_path, "other.csv", shift=1000.0))))  # type: ignore[type-var]
    anew, as_trained = open_task(other), open_task(replace(other, model=task.run.model))
    own, new, trained = (one.data.tables[0].covariates[:, -1] for one in (task, anew, as_trained))
    assert np.allclose(new, own)
    assert np.allclose(trained, own + 1000 / task.run.model.series.deviation[0])  # type: ignore[attr-defined]
    assert as_trained.run.model.series == task.run.model.series  # type: ignore[attr-defined]
    later = replace(config, data=replace(config.data, source=str(sales(tmp_path, "later.csv", first=5))))  # type: ignore[type-var]
    season = open_task(replace(later, model=task.run.model)).data.tables[0].covariates[:, 2:4]
    assert np.allclose(season[:10], task.data.tables[0].covariates[5:15, 2:4]), "counted from the training's beginning"


def test_columns_in_another_order_are_those_of_the_model(tmp_path: Path) -> None:
    config = sales_run(tmp_path)
    open_data = replace(config.data, targets=())  # type: ignore[type-var]
    config = replace(config, data=open_data)
    task = open_task(config)
    swapped = replace(open_data, source=str(sales(tmp_path, "swapped.csv", columns="back;sold")))  # type: ignore[type-var]
    assert open_task(replace(config, data=swapped)).data.targets == ("back", "sold")
    assert open_task(replace(config, data=swapped, model=task.run.model)).data.targets == ("sold", "back")
    strange = replace(open_data, source=str(sales(tmp_path, "strange.csv", columns="a;b")))  # type: ignore[type-var]
    with pytest.raises(DataError, match="has no column 'sold'"):
        open_task(replace(config, data=strange, model=task.run.model))


def test_a_resumed_run_keeps_what_its_checkpoint_says(tmp_path: Path) -> None:
    config = sales_run(tmp_path)
    part = with_train(config, steps=2, kind="wsd", warmup=0.0, decay=0.0)
    train_run(part, tmp_path / "run")
    before = sw.load(tmp_path / "run").config.series
    train_run(with_train(part, steps=4), tmp_path / "run", resume=True)
    assert sw.load(tmp_path / "run").config.series == before
    task = open_task(config)
    task.go_on_from(replace(task.run.model, series=None))  # type: ignore[type-var]
    assert task.run.model.series == before, "a checkpoint of 0.1.0 says nothing"  # type: ignore[attr-defined]


def as_of_the_first_version(folder: Path) -> None:
    """A config.json as 0.1.0 wrote it."""
    import hashlib

    path = folder / CONFIG_FILE
    data = json.loads(path.read_text())
    data.pop("sha256")
    data["model"].pop("series")
    data = {**data, "format_version": 1}
    path.write_bytes(encode_json({**data, "sha256": hashlib.sha256(encode_json(data)).hexdigest()}))


def test_a_checkpoint_of_the_first_version_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train_run(sales_run(tmp_path), tmp_path / "run")
    assert result.checkpoint is not None
    for checkpoint in result.checkpoint.parent.iterdir():
        if not checkpoint.is_symlink():
            as_of_the_first_version(checkpoint)
    with pytest.warns(UserWarning, match="written by Statewise 0.1.0, which saved no columns, calendar and") as caught:
        model: Any = sw.load(result.checkpoint)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert model.config.series is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.run(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["windows"] > 0


def test_a_config_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    model = open_task(sales_run(tmp_path)).run.model
    assert model_from_dict(json.loads(json.dumps(model_to_dict(model)))) == model
    series: SeriesInputConfig = model.series  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="0 mean and 1 deviation for 1 covariates"):
        replace(series, mean=())
    with pytest.raises(ConfigError, match=r"ForecasterConfig\.series has d_target=1, but the model d_target=2"):
        replace(model, series=replace(series, targets=("sold",)))  # type: ignore[type-var]
    data = model_to_dict(model)
    with pytest.raises(ConfigError, match="has no field 'colour'"):
        model_from_dict({**data, "series": {**data["series"], "colour": 1}})
