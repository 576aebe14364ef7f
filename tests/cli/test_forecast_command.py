"""`statewise forecast`: beyond the end of the run's own series, or of others, to a file and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run
from forecast_runs import sales_run
from raw_data import run_on, shifted

import statewise as sw
from statewise.data import LabelledDataConfig
from statewise.training import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    train_run(sales_run(folder, covariates=(), targets=("sold", "back")), folder / "run")
    return folder


def test_the_runs_own_series_and_others(run: Run, trained: Path, tmp_path: Path) -> None:
    result = run("forecast", trained / "run")
    assert result.code == 0, result.err
    expected = sw.predictor(trained / "run").forecast(trained / "sales.csv")
    assert result.records == list(expected.rows())
    assert result.records[0]["time"] == "2023-01-01"
    out = tmp_path / "future.csv"
    other = tmp_path / "other.csv"
    other.write_text("\n".join((trained / "sales.csv").read_text().splitlines()[:41]) + "\n")
    result = run("forecast", trained / "run", other, "--steps", "9", "--out", out, "--seed", "1", "--paths", "20")
    assert result.code == 0, result.err
    assert result.err.strip() == f"9 steps ahead: {out}"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    again = sw.predictor(trained / "run").forecast(other, 9, paths=20, seed=1)
    assert [float(row["sold 90%"]) for row in rows] == again.columns()["sold 90%"].tolist()
    assert [row["time"] for row in rows][:2] == ["2021-05-01", "2021-06-01"]
    checkpoint = next((trained / "run" / "checkpoints").iterdir())
    assert run("forecast", checkpoint, other, "--steps", "1").code == 0


def test_answers_never_replace_the_series(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    own = trained / "sales.csv"
    before = own.read_bytes()
    (tmp_path / "link.csv").symlink_to(own)
    other = tmp_path / "other.csv"
    other.write_bytes(before)
    for words in (
        ("--out", own),
        (own, "--out", own),
        ("--out", tmp_path / "link.csv"),
        (own, "--future", other, "--out", other),
    ):
        assert "is the data that are read" in refused("forecast", trained / "run", *words, "--overwrite")
    assert own.read_bytes() == other.read_bytes() == before


def test_parquet_and_a_picture(run: Run, refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    out, plot = tmp_path / "future.parquet", tmp_path / "future.svg"
    asked = ("forecast", trained / "run", "--out", out, "--plot", plot)
    result = run(*asked)
    assert result.err.splitlines() == [f"2 series, 4 steps ahead: {out}", f"2 series, 4 steps ahead: {plot}"]
    table = parquet.read_table(out)
    assert str(table.schema.field("time").type) == "date32[day]"
    assert table.num_rows == 8
    assert "80 % interval" in plot.read_text()
    before = out.read_bytes(), plot.read_bytes()
    assert "exists already" in refused(*asked)
    assert "future.svg exists already" in refused("forecast", trained / "run", "--plot", plot)
    assert (out.read_bytes(), plot.read_bytes()) == before
    assert run(*asked, "--overwrite").code == 0
    drawn = run("forecast", trained / "run", "--plot", plot, "--overwrite")
    assert (drawn.out, drawn.err.strip()) == ("", f"2 series, 4 steps ahead: {plot}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["future.parquet", "future.svg"]


def test_what_does_not_go_is_refused(run: Run, refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    checkpoint = next((trained / "run" / "checkpoints").iterdir())
    assert "is a checkpoint without its run, so it does not say where its series are; give DATA" in refused(
        "forecast", checkpoint
    )
    assert "use statewise forecast" in refused("predict", trained / "run", trained / "sales.csv")
    assert "leave out the future table" in refused("forecast", trained / "run", "--future", trained / "sales.csv")
    assert "the name says no format for answers" in refused("forecast", trained / "run", "--out", tmp_path / "a.txt")
    assert "a figure cannot be written to" in refused("forecast", trained / "run", "--plot", tmp_path / "a.gif")
    assert "there is no file" in refused("forecast", trained / "run", tmp_path / "none.csv")
    train_run(run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path))), steps=1), tmp_path / "classes")
    assert "does not forecast; use statewise predict" in refused("forecast", tmp_path / "classes")


def test_evaluate_scores_and_draws_both_targets(run: Run, trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = run("evaluate", trained / "run", "--plot", tmp_path / "a.svg", "--json")
    assert json.loads(result.out)["windows"] > 0, result.err
    drawn = (tmp_path / "a.svg").read_text()
    for words in ("80 % interval", "observed", "sold", "back"):
        assert f"<!-- {words} -->" in drawn


@pytest.mark.parametrize("steps", [None, 9])
def test_exactly(run: Run, trained: Path, steps: int | None) -> None:
    """Within the horizon, and beyond it."""
    options = [] if steps is None else ["--steps", str(steps)]
    result = run("forecast", trained / "run", "--exact", *options)
    assert result.code == 0, result.err
    with sw.exact():
        expected = sw.predictor(trained / "run").forecast(trained / "sales.csv", steps=steps)
    assert result.records == list(expected.rows())
