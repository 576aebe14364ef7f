"""Forecasts beyond the end: those of evaluation, of a stream, of the definition of later blocks; what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forecast_runs import sales, sales_run
from test_forecasts_ahead import walk

import statewise as sw
from statewise.data.series import open_series
from statewise.errors import DataError, InputError
from statewise.estimation.structural import Irregular, Level
from statewise.evaluate.forecasting import forecast
from statewise.mixers.s4d import S4DConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.structural import StructuralForecasterConfig
from statewise.predict import Forecasts, Predictor
from statewise.training import open_task, train_run


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: of a network, of a structural model, and of a network that reads the values alone."""
    folder = tmp_path_factory.mktemp("shops")
    plain = {"covariates": (), "calendar": (), "targets": ("sold",)}
    for name, structural, options in (("network", False, {}), ("structural", True, {}), ("plain", False, plain)):
        train_run(sales_run(folder, structural, **options), folder / name)
    return folder


def cut(folder: Path, n: int, name: str = "cut.csv", known: bool = True) -> tuple[Path, Path]:
    """The sales of the first ``n`` months, and the promotions of the others, in the same file or in another."""
    lines = sales(folder).read_text().splitlines()
    rows = [line.split(";") for line in lines[1:]]
    begin = {"north": 0, "south": 60}
    head, plan = [lines[0]], ["month;shop;promo"]
    for i, row in enumerate(rows):
        if i - begin[row[1]] < n:
            head.append(";".join(row))
        else:
            plan.append(";".join([row[0], row[1], row[4]]))
            if known:
                head.append(f"{row[0]};{row[1]};;;{row[4]}")
    (folder / name).write_text("\n".join(head) + "\n")
    (folder / "plan.csv").write_text("\n".join(plan) + "\n")
    return folder / name, folder / "plan.csv"


@pytest.mark.parametrize("name", ["network", "structural"])
def test_it_is_what_evaluation_forecasts(shops: Path, tmp_path: Path, name: str) -> None:
    """From the same place in time, with the same covariates known ahead, below the last values or in another table."""
    predictor = sw.predictor(shops / name)
    task = open_task(replace(sales_run(shops), model=predictor.model.config))  # type: ignore[type-var]
    split = task.data.split("test")
    origins = [origin for origin in split.origins if origin.row == 50]
    expected = forecast(predictor.model, split, origins)  # type: ignore[arg-type]
    table, plan = cut(tmp_path, 50)
    answers = predictor.forecast(table)
    np.testing.assert_allclose(answers.values, expected, rtol=1e-5, atol=1e-5)
    assert answers.names.tolist() == ["north", "south"]
    assert str(answers.times[0, 0]) == "2022-03-01"
    alone, _ = cut(tmp_path, 50, "alone.csv", known=False)
    assert np.array_equal(predictor.forecast(alone, future=plan).values, answers.values)
    assert np.array_equal(predictor.forecast(table, future=plan).values, answers.values)
    alias = predictor.predict(table)
    assert isinstance(alias, Forecasts)
    assert np.array_equal(alias.values, answers.values)
    short = predictor.forecast(table, 2)
    assert short.values.shape == (2, 2, 2, 3)
    np.testing.assert_allclose(short.values, answers.values[:, :2], rtol=1e-6)


def test_columns_rows_and_frames(shops: Path, tmp_path: Path) -> None:
    answers = sw.predictor(shops / "network").forecast(cut(tmp_path, 50)[0], 3)
    assert list(answers.columns()) == ["series", "time", "sold", "sold 10%", "sold 90%", "back", "back 10%", "back 90%"]
    assert len(answers) == 6
    rows = list(answers.rows())
    assert rows[3] == {
        "series": "south",
        "time": "2022-03-01",
        **{"sold": answers.values[1, 0, 0, 1], "sold 10%": answers.values[1, 0, 0, 0]},
        **{"sold 90%": answers.values[1, 0, 0, 2], "back": answers.values[1, 0, 1, 1]},
        **{"back 10%": answers.values[1, 0, 1, 0], "back 90%": answers.values[1, 0, 1, 2]},
    }
    assert answers.interval == "80 % interval"
    assert np.array_equal(answers.point, answers.values[..., 1])
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = answers.to_frame()
    assert pandas.api.types.is_datetime64_any_dtype(frame["time"])
    assert frame["time"].iloc[-1] == pandas.Timestamp("2022-05-01")


@pytest.mark.parametrize("name", ["plain", "structural"])
def test_values_one_by_one_are_the_whole(shops: Path, tmp_path: Path, name: str) -> None:
    """With the state carried on; and a frozen copy of the model says the same."""
    predictor = sw.predictor(shops / name)
    model: Any = predictor.model
    table, _ = cut(tmp_path, 12)
    if name == "plain":
        whole = predictor.forecast(table)
        given: dict[str, Any] = {}
    else:
        whole = predictor.forecast(table, 4)
        ahead = torch.tensor(np.stack([past.covariates_ahead for past in whole.pasts]))
        given = {"future_covariates": ahead}
    dtype = next(model.parameters()).dtype
    values = torch.tensor(np.stack([past.values for past in whole.pasts])).to(dtype)
    covariates = torch.tensor(np.stack([past.covariates for past in whole.pasts])).to(dtype)
    for reader in (model, model.freeze()) if name == "plain" else (model,):
        state = reader.initial_state(2)
        with torch.no_grad():
            for t in range(12):
                more = {"covariates": covariates[:, t : t + 1], **given} if given else {}
                found, state = reader(values[:, t : t + 1], state, **more)
        np.testing.assert_allclose(found.numpy(), whole.values, rtol=1e-4, atol=1e-4)


def test_a_structural_model_goes_on_exactly(shops: Path, tmp_path: Path) -> None:
    predictor = sw.predictor(shops / "structural")
    table, _ = cut(tmp_path, 50)
    model: Any = predictor.model
    longer = replace(model.config, horizon=10).build()
    longer.load_state_dict(model.state_dict())
    np.testing.assert_allclose(
        predictor.forecast(table, 10).values, Predictor(longer).forecast(table).values, rtol=1e-12
    )
    built = StructuralForecasterConfig(horizon=3, components=(Level(), Irregular())).build()
    with pytest.raises(InputError, match="steps=0 is out of range"):
        built(torch.zeros(1, 5, 1), steps=0)
    far = Predictor(built).forecast(walk(), 500)
    assert far.values.shape == (1, 500, 1, 3)


def test_months_end_where_months_end_and_each_series_where_it_ends(shops: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    ends = pandas.date_range("2020-01-31", periods=26, freq="ME")
    north = pandas.DataFrame({"month": ends, "shop": "north", "sold": np.arange(26.0)})
    south = north.iloc[:20].assign(shop="south")
    answers = sw.predictor(shops / "plain").forecast(pandas.concat([north, south]), 3)
    assert answers.times[0].astype(str).tolist() == ["2022-03-31", "2022-04-30", "2022-05-31"]
    assert answers.times[1].astype(str).tolist() == ["2021-09-30", "2021-10-31", "2021-11-30"]


def test_what_a_short_table_leaves_open_is_meant_as_in_training(tmp_path: Path) -> None:
    """Months before days, and points between thousands: three rows alone do not tell."""
    rows = [f"{i % 12 + 1:02}/01/{2018 + i // 12};1.{i:03};{i % 2},5" for i in range(60)]
    (tmp_path / "long.csv").write_text("\n".join(["month;sold;promo", *rows]) + "\n")
    data = sw.SeriesDataConfig(
        source=str(tmp_path / "long.csv"), targets=("sold",), covariates=("promo",), horizon=3, history=4
    )
    train_run(replace(sales_run(tmp_path, targets=("sold",), calendar=(), horizon=3), data=data), tmp_path / "run")
    predictor = sw.predictor(tmp_path / "run")
    assert predictor.model.config.series.usual == (",", False)  # type: ignore[attr-defined]
    (tmp_path / "short.csv").write_text("\n".join(["month;sold;promo", *(r[:-1] + "0" for r in rows[-5:])]) + "\n")
    (tmp_path / "plan.csv").write_text("month;promo\n01/01/2023;1.000\n02/01/2023;2.000\n03/01/2023;1.000\n")
    answers = predictor.forecast(tmp_path / "short.csv", future=tmp_path / "plan.csv")
    assert answers.times[0].astype(str).tolist() == ["2023-01-01", "2023-02-01", "2023-03-01"]
    assert answers.pasts[0].values.ravel().tolist() == [1056, 1057, 1058, 1059]
    promo = answers.pasts[0].covariates_ahead[:, 0]
    assert promo[1] > promo[0] > 100


def test_values_in_memory(shops: Path) -> None:
    predictor, y = sw.predictor(shops / "plain"), walk(2, 20)
    several = predictor.forecast(y)
    one = predictor.forecast(y[0], times=np.arange("2020-01", "2021-09", dtype="datetime64[M]"))
    np.testing.assert_allclose(one.values[0], several.values[0], rtol=1e-6)
    assert one.times[0].astype(str).tolist() == ["2021-09-01", "2021-10-01", "2021-11-01", "2021-12-01"]
    assert several.times[0].tolist() == [20, 21, 22, 23]
    ragged = predictor.forecast([y[0], y[1, :13]])
    np.testing.assert_allclose(ragged.values[1], predictor.forecast(y[1, :13]).values[0], rtol=1e-5, atol=1e-5)
    assert several.targets == ("sold",)


# ---- refusals


def test_what_is_missing_or_contradicts_is_refused_in_a_line(shops: Path, tmp_path: Path) -> None:
    network, plain = sw.predictor(shops / "network"), sw.predictor(shops / "plain")
    alone, plan = cut(tmp_path, 50, known=False)
    table, _ = cut(tmp_path, 50, "whole.csv")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(plan.read_text().replace("2022-04-01;north;", "2022-04-01;north;9"))
    short = tmp_path / "short.csv"
    short.write_text("\n".join(alone.read_text().splitlines()[:9]) + "\n")
    weekly = tmp_path / "weekly.csv"
    weekly.write_text("month;shop;sold\n" + "".join(f"2024-01-{d:02};a;{d}\n" for d in range(1, 29)))
    gap = tmp_path / "gap.csv"
    gap.write_text(alone.read_text().replace("2021-12-01;north;", "2021-12-01;north;1;1;\n#").split("#")[0])
    for call, message in (
        (lambda: network.forecast(alone), r"'promo' of series 'north' is missing at 2022-03-01, step 1 of 4"),
        (lambda: network.forecast(table, 11, future=plan), "'promo' of series 'north' is missing at 2023-01-01, step"),
        (lambda: network.forecast(table, future=wrong), r"'promo' of series 'north' at 2022-04-01 is .* in the future"),
        (lambda: network.forecast(short), "series 'north' has 8 steps to forecast from, 8 with a value; .* 12"),
        (lambda: network.forecast(gap), "the covariate 'promo' of series 'north' is missing at 2021-12-01; fill it"),
        (lambda: plain.forecast(table, future=plan), "reads no covariates that are known ahead; leave out the future"),
        (lambda: plain.forecast(weekly), "its steps are of day, but those of the training data were of month; res"),
        (lambda: plain.forecast(table, 0), "steps=0 is out of range"),
        (lambda: plain.forecast(table, times=[1]), "times are for values in memory"),
        (lambda: plain.forecast(walk(), paths=1), "paths=1 is out of range"),
        (lambda: plain.forecast(walk(1, 5)), "series 0 has 5 steps, 5 of its last with a value; the model reads at"),
        (lambda: plain.forecast(walk(1, 20, 2)), r"shape \(1, 20, 2\); expected \(n, length, 1\), or \(length, 1\)"),
        (lambda: plain.forecast(walk()[0], times=np.arange(40)), "the times are numbers; in training they were not"),
        (lambda: plain.forecast(walk()[0], times=["2020-01", "2020-02"]), "there are 2 times for series of 40 steps"),
        (lambda: plain.forecast("abc"), "there is no file 'abc'"),
        (lambda: plain.forecast(["abc", "def"]), "are not an array of numbers"),
        (lambda: network.forecast(walk(1, 20, 2)), r"reads covariates \(promo\) beside the targets; give a table"),
        (lambda: Predictor(ForecasterConfig(horizon=2, d_model=8, layers=(S4DConfig(),)).build()).forecast(table),
         "does not say which columns it reads"),
    ):  # fmt: skip
        with pytest.raises((InputError, DataError), match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_covariates_of_the_past_end_with_the_horizon(tmp_path: Path) -> None:
    config = sales_run(tmp_path, covariates=(), past_covariates=("promo",), calendar=())
    train_run(config, tmp_path / "run")
    predictor = sw.predictor(tmp_path / "run")
    assert predictor.forecast(tmp_path / "sales.csv").values.shape == (2, 4, 2, 3)
    with pytest.raises(InputError, match="steps=5 is beyond the horizon, 4, but the model reads covariates of"):
        predictor.forecast(tmp_path / "sales.csv", 5)


def test_the_calendar_goes_on(tmp_path: Path) -> None:
    """What a model reads of the steps to come is what it would read if they were rows of the table."""
    config = sales_run(tmp_path, covariates=(), calendar=("season", "year"))
    train_run(config, tmp_path / "run")
    lines = (tmp_path / "sales.csv").read_text().splitlines()
    head = tmp_path / "head.csv"
    head.write_text("\n".join(lines[:51]) + "\n")
    past = sw.predictor(tmp_path / "run").pasts(head, 8)[0]
    expected = open_series(config.data).tables[0].covariates[50:58]  # type: ignore[arg-type]
    np.testing.assert_allclose(past.covariates_ahead, expected, atol=1e-12)


def test_a_picture_has_a_panel_for_each_target_and_names_its_band(shops: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    sw.predictor(shops / "network").forecast(cut(tmp_path, 50)[0]).plot(tmp_path / "a.svg", most=1)
    drawn = (tmp_path / "a.svg").read_text()
    for words in ("observed", "forecast", "80 % interval", "sold", "back", "north", "the first 1 of 2 series"):
        assert f"<!-- {words} -->" in drawn
    assert "<!-- south -->" not in drawn
