"""Forecasts from series with gaps: what is taken away, that nothing of it is read, and the whole at its smallest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise.data.series import open_series
from statewise.errors import ConfigError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.kalman_missing import (
    MODELS,
    NAMES,
    SCALING_STEPS,
    SEASONS,
    SERIES,
    KalmanMissingSettings,
    report,
    run_config,
    values,
    write_series,
)

pytest.importorskip("statsmodels", reason="the series come with statsmodels")


@pytest.mark.parametrize("name", SERIES)
def test_a_share_of_what_was_there_is_gone(name: str, tmp_path: Path) -> None:
    """Other values for another seed; all that is left is as it was, at its time."""
    config = KalmanMissingSettings()
    files = [write_series(name, tmp_path, 0.3, seed) for seed in (None, 0, 1)]
    runs = [run_config(config, name, "both", 0, file) for file in files]
    whole, *gaps = [open_series(run.data).tables[0] for run in runs]  # type: ignore[arg-type]
    there = ~np.isnan(whole.values)
    for table in gaps:
        left = ~np.isnan(table.values)
        assert np.array_equal(table.times, whole.times)
        assert abs(left.sum() / there.sum() - 0.7) < 0.001
        assert np.array_equal(table.values[left], whole.values[left])
    assert not np.array_equal(*[np.isnan(table.values) for table in gaps])
    assert len(values(name)) == len(whole.values) if name != "co2" else there.sum() == 2225


def test_the_runs() -> None:
    assert set(NAMES) == set(MODELS)
    assert set(SEASONS) == set(SCALING_STEPS) == set(SERIES)
    with pytest.raises(ConfigError, match="use one of: mamba, kalman, both"):
        KalmanMissingSettings(models=("s4",))


def test_the_whole_at_its_smallest(tmp_path: Path) -> None:
    few = ["steps=2", "batch_size=4", "d_model=8", "seeds=[0,1]"]
    config = settings("kalman-missing", quick=True, assignments=few)
    record: Any = reproduce("kalman-missing", tmp_path / "run", config, plots=False).record
    scores, paired = record["tables"]
    assert [row[:2] for row in scores["rows"]] == [["sunspots", NAMES[model]] for model in MODELS]
    assert [row[1] for row in paired["rows"]] == [NAMES["mamba"], NAMES["kalman"]]
    assert all(row[-1].endswith("of 2") for row in paired["rows"])


def test_what_is_better_is_told_seed_by_seed() -> None:
    config = KalmanMissingSettings(series=("co2",), seeds=(0, 1))
    found = {}
    for model, mase in (("mamba", (1.0, 2.0)), ("kalman", (0.5, 1.0)), ("both", (0.8, 1.0))):
        for seed in (0, 1):
            naive = {"seasonal naive": 1.5, "seasonal naive with drift": 1.0}
            part = {"mase": mase[seed], "coverage": 0.8, "naive": naive, "parameters": 9, "seconds": 30.0}
            found[f"co2-{model}-{seed}"] = part
    told = report(config, found)
    assert [row[2] for row in told.tables[0].rows] == ["1.500", "0.750", "0.900"]
    assert [row[2:] for row in told.tables[1].rows] == [
        ("35.0", "21.2", "2 of 2"),
        ("-30.0", "42.4", "0 of 2"),
    ]
    assert "3.0 minutes" in told.setting
