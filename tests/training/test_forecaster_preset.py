"""The general preset for series: sizes that fit what there is, however short; and how long is long enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import statewise as sw
from statewise.data.series import SeriesDataConfig
from statewise.data.splits import SPLITS
from statewise.errors import DataError
from statewise.training.config import RunConfig
from statewise.training.presets.forecasting import FEWEST_WINDOWS, forecaster


def months(folder: Path, n: int, n_series: int = 1, gaps: tuple[int, ...] = ()) -> Path:
    rng, path = np.random.default_rng(0), folder / f"months{n}.csv"
    lines = ["date,shop,v"]
    for shop in range(n_series):
        for i in range(n):
            if i not in gaps:
                value = 10 * np.sin(i * 2 * np.pi / 12) + rng.normal()
                lines.append(f"{2019 + i // 12}-{i % 12 + 1:02}-01,{shop},{value:.2f}")
    path.write_text("\n".join(lines))
    return path


def preset(path: Path, **given: Any) -> RunConfig:
    fields = {"source": str(path), "targets": ("v",), **given}
    return forecaster(SeriesDataConfig(**fields), {*fields})


@pytest.mark.parametrize("horizon", [1, 3, 6, None])
@pytest.mark.parametrize("n", [34, 40, 60, 97, 150, 400])
def test_every_length_has_batches_and_places_to_be_scored_at(n: int, horizon: int | None, tmp_path: Path) -> None:
    run = preset(months(tmp_path, n), **({} if horizon is None else {"horizon": horizon}))
    data = sw.open_series(run.data)
    sizes = [len(data.split(name)) for name in SPLITS]
    assert sizes[0] >= FEWEST_WINDOWS
    assert min(sizes) >= 1
    assert 2 * run.train.batch_size <= sizes[0]
    assert run.train.batch_size == 32 or 4 * run.train.batch_size > sizes[0]
    assert run.train.budget.steps is not None
    assert 60 <= run.train.budget.steps <= 400


def test_five_years_of_months_are_trained_on_and_asked(tmp_path: Path) -> None:
    path = months(tmp_path, 60)
    run = sw.train("forecaster", path, targets=("v",), horizon=3, steps=4, out=tmp_path / "run", progress=False)
    assert run.evaluate("test")["windows"] > 0
    assert run.predict(path).values.shape == (1, 3, 1, 3)


@pytest.mark.parametrize(
    ("n", "given"),
    [
        (5, {"horizon": 3}),
        (20, {"horizon": 3}),
        (30, {"horizon": 12}),
        (10, {}),
        (40, {"horizon": 3, "history": 30, "min_history": 30}),
        (60, {"horizon": 3, "validation_fraction": 0.01}),
        (11, {"horizon": 3, "validation_fraction": 0.0, "test_fraction": 0.0}),
    ],
)
def test_what_is_too_short_is_told_what_is_long_enough(n: int, given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"has \d+ steps of month; to learn .* at least \d+ rows are needed; give"
    ) as caught:
        preset(months(tmp_path, n), **given)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    assert needed > n
    given = {"horizon": 1, **given}
    preset(months(tmp_path, needed), **given)
    if needed - 1 > n:
        with pytest.raises(DataError, match=f"at least {needed} rows"):
            preset(months(tmp_path, needed - 1), **given)


def test_many_short_series_are_long_enough_together(tmp_path: Path) -> None:
    several = preset(months(tmp_path, 18, n_series=12), horizon=3, series="shop")
    assert several.train.batch_size > 8
    with pytest.raises(
        DataError, match=r"the longest of the series has 8 steps of month; .* at least \d+ rows are nee"
    ):
        preset(months(tmp_path, 8, n_series=12), horizon=3, series="shop")


def test_gaps_may_leave_too_little(tmp_path: Path) -> None:
    path = months(tmp_path, 40, gaps=tuple(range(3, 31)))
    with pytest.raises(DataError, match=r"gaps, or series that are short by themselves, leave \d windows to train on"):
        preset(path, horizon=3)
