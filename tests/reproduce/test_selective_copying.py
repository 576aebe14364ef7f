"""Reproduction of selective copying: settings, the whole at its smallest, and what the report says."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from statewise.errors import ConfigError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.report import Report, markdown
from statewise.reproduce.selective_copying import MIXERS, NAMES, SELECTIVE, SelectiveCopyingSettings, run_config
from statewise.reproduce.selective_copying import report as make_report

PLOTS = find_spec("matplotlib") is not None


def test_the_runs() -> None:
    config = SelectiveCopyingSettings()
    for model in MIXERS:
        run: Any = run_config(config, model, 2)
        assert (run.model.d_model, len(run.model.layers), run.data.n_copied, run.train.seed) == (64, 2, 8, 2)
        assert run.data.n_train == config.steps * config.batch_size  # no row is read twice
        assert run.data.answer_only
    assert set(NAMES) == set(MIXERS) >= set(SELECTIVE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("hyena",)}, "use one of: s4, gss, h3, mamba, mamba2"),
        ({"n_copied": 100}, "n_copied"),
        ({"lr": -1.0}, "lr"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SelectiveCopyingSettings(**changes)


def test_every_model_in_a_quick_look(tmp_path: Path) -> None:
    small = ["steps=4", "look_every=2", "n_test=8", "n_validation=8", "seeds=[3,4]", "stop_at=null", "bars=true"]
    models = f"models={json.dumps(list(MIXERS))}"
    config = settings("selective-copying", quick=True, assignments=[models, *small])
    record: Any = reproduce("selective-copying", tmp_path / "run", config, plots=PLOTS).record
    (table,) = record["tables"]
    assert [row[:3] for row in table["rows"]] == [
        ["S4, no gate", "no", "18.3"],
        ["S4D, gated (GSS)", "no", "-"],
        ["H3", "no", "57.0"],
        ["Mamba", "yes", "99.8"],
        ["Mamba-2", "yes", "-"],
    ]
    assert all(row[5] == "4 4" for row in table["rows"])
    assert len(record["bars"]) == 3
    assert not PLOTS or (tmp_path / "run" / "selective-copying.png").exists()


def made(right: dict[str, float], **changes: Any) -> Report:
    config = SelectiveCopyingSettings(models=tuple(right), seeds=(0, 1), **changes)
    found = {}
    for model, accuracy in right.items():
        for seed, lower in ((0, 0.0), (1, 0.1)):
            run = {"accuracy": accuracy - lower, "steps": 512, "course": [0.1, 0.2]}
            part = {"seeds": {"seed": run}, "cpu_seconds": 60.0, "parameters": 9, "ms_per_step": 3.0}
            found[f"{model}-{seed}"] = part
    return make_report(config, found)


class TestReport:
    def test_bars(self) -> None:
        report = made({"s4": 0.3, "h3": 0.7, "mamba": 1.0, "mamba2": 0.95})
        assert [bar.holds for bar in report.bars] == [True, False, True]
        assert report.bars[2].ours == pytest.approx(25.0)
        assert report.tables[0].rows[2][3:5] == ("95.0", "100.0 90.0")
        assert "4.0 minutes" not in report.setting
        assert "8.0 minutes of processor time" in report.setting

    def test_a_diverged_seed_is_shown_as_such(self, tmp_path: Path) -> None:
        config = SelectiveCopyingSettings(models=("s4", "mamba"), seeds=(0, 1))
        lost = {"seeds": {"seed": {"diverged": "step 3"}}, "cpu_seconds": 6.0, "parameters": 9, "ms_per_step": None}
        found = {f"{model}-{seed}": lost for model in config.models for seed in config.seeds}
        run = {"diverged": None, "accuracy": 1.0, "steps": 512, "course": [0.1, 0.2]}
        found["mamba-1"] = {**lost, "seeds": {"seed": run}, "ms_per_step": 3.0}
        report = make_report(config, found)
        assert [row[3:6] for row in report.tables[0].rows] == [
            ("diverged", "diverged diverged", "- -"),
            ("diverged", "diverged 100.0", "- 512"),
        ]
        assert [row[-1] for row in report.tables[0].rows] == ["-", "3.0"]
        assert [bar.what for bar in report.bars] == ["Mamba, the best seed"]  # S4 has no accuracy to be below it
        if PLOTS:
            report.plots[0].write(tmp_path / "plot.png")

    def test_nothing_is_said_of_what_was_not_run(self) -> None:
        report = made({"s4": 0.3}, stop_at=None)
        assert report.bars == []
        page = markdown(report, {"date": "", "seconds": 0.0, "environments": [], "settings": {}}, [])
        for word in ("Mamba-2", "GSS", "ends early"):
            assert word not in page
        assert "published are rows of 4,096 tokens" in page
        assert [bar.what for bar in made({"mamba": 1.0}).bars] == ["Mamba, the best seed"]
