"""Training curves: out of metrics.jsonl, as means over seeds, and as a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_task import ToyConfig, ToyDataConfig, toy
from training_runs import small_run, train_config, with_train

from statewise.errors import CheckpointError, ConfigError, InputError
from statewise.plots.curves import smoothed
from statewise.training import RunConfig
from statewise.training.curves import mean_of, read_curves
from statewise.training.plotting import plot_runs
from statewise.training.run_folder import RunFolder
from statewise.training.several_folder import begin_folder, seeds_and_rates


def train_line(step: int, loss: float, seconds: float = 0.0) -> dict[str, Any]:
    numbers = {"loss": loss, "bits_per_byte": 1.5 * loss, "gradient_norm": 1.0, "lr": 1e-3 / step}
    return {"kind": "train", "step": step, "seconds": seconds or step / 4, **numbers, "tokens": 32 * step}


def look(step: int, loss: float) -> dict[str, Any]:
    numbers = {"loss": loss, "bits_per_byte": 1.5 * loss, "tokens": 200}
    return {"kind": "evaluation", "step": step, "seconds": step / 4 + 1, **numbers, "best": True}


def write(folder: Path, config: RunConfig, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder, config).write_config()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


LINES = [train_line(2, 4.0), train_line(4, 2.0), look(4, 3.0), train_line(6, 1.0), look(7, 2.5)]


class TestRead:
    @pytest.mark.parametrize(
        ("x", "training", "validation"),
        [("steps", [2, 4, 6], [4, 7]), ("time", [0.5, 1, 1.5], [2, 2.75]), ("units", [64, 128, 192], [128, 192])],
    )
    def test_one_run(self, tmp_path: Path, x: Any, training: list[float], validation: list[float]) -> None:
        (run,) = read_curves(write(tmp_path / "mine", small_run(tmp_path), LINES), x)
        assert (run.name, run.metric, run.unit, run.n_runs, run.n_diverged) == ("mine", "bits_per_byte", "tokens", 1, 0)
        assert run.training["loss"].x.tolist() == training
        assert run.training["loss"].y.tolist() == [4, 2, 1]
        assert run.validation["bits_per_byte"].x.tolist() == validation
        assert run.validation["bits_per_byte"].y.tolist() == [4.5, 3.75]
        assert run.best == 3.75
        assert not {"best", "kind"} & {*run.training, *run.validation}

    def test_a_folder_of_seeds_and_rates(self, tmp_path: Path) -> None:
        runs = seeds_and_rates(small_run(tmp_path), 3, [1e-3, 3e-3])
        begin_folder(tmp_path / "sweep", runs)
        for number, (name, config) in enumerate(runs.items()):
            lines = [train_line(step, number + 1 / step) for step in (1, 2, 3)]
            if name == "lr-0.003-seed-1":
                lines = [train_line(1, 99.0), {"kind": "diverged", "step": 2, "message": "it went wrong"}]
            if name != "lr-0.003-seed-2":  # has not begun
                write(tmp_path / "sweep" / name, config, lines)
        first, second = read_curves(tmp_path / "sweep")
        assert (first.name, first.n_runs, first.n_diverged) == ("sweep lr-0.001", 3, 0)
        curve = first.training["loss"]
        assert curve.y == pytest.approx([2, 1.5, 1 + 1 / 3])
        assert curve.low is not None
        assert curve.high is not None
        assert (curve.high - curve.low).tolist() == [2, 2, 2]
        assert (second.name, second.n_runs, second.n_diverged) == ("sweep lr-0.003", 1, 1)
        assert second.training["loss"].y == pytest.approx([4, 3.5, 3 + 1 / 3])

    def test_the_mean_of_runs_that_are_not_equally_far(self, tmp_path: Path) -> None:
        config = small_run(tmp_path)
        short = read_curves(write(tmp_path / "a", config, [train_line(1, 1.0), train_line(3, 3.0)]))
        long = read_curves(write(tmp_path / "b", config, [train_line(step, 5.0) for step in (2, 3, 4)]))
        curve = mean_of([*short, *long], "both").training["loss"]
        assert (curve.x.tolist(), curve.y.tolist()) == ([2, 3], [3.5, 4])

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        config = small_run(tmp_path)
        with pytest.raises(ConfigError, match="x='epochs' is unknown; use one of steps, time, units"):
            read_curves(tmp_path, "epochs")  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match="holds no run"):
            read_curves(tmp_path)
        with pytest.raises(CheckpointError, match="empty has no line of metrics yet"):
            read_curves(write(tmp_path / "empty", config, []))
        for value in ("x", None, 10**400):
            damaged = [train_line(1, 2.0), {**train_line(2, 1.0), "tokens": value}]
            with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged: in the line of step 2 tokens is"):
                read_curves(write(tmp_path / "damaged", config, damaged).rename(tmp_path / f"damaged-{value}"[:40]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 50])
def test_smoothing_is_a_mean_around_each_value(n: int) -> None:
    y = np.random.default_rng(0).normal(size=12)
    for i, value in enumerate(smoothed(y, n)):
        half = min(n // 2, i, 11 - i)
        assert value == pytest.approx(y[i - half : i + half + 1].mean())


class TestPlot:
    @pytest.fixture(autouse=True)
    def _needed(self) -> None:
        pytest.importorskip("matplotlib")

    def test_one_run(self, tmp_path: Path) -> None:
        run = write(tmp_path / "mine", small_run(tmp_path), LINES)
        figure = plot_runs([run], smooth=3)
        loss, metric, rate = figure.axes
        assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "bits per byte", "learning\nrate"]
        faint, training, validation = loss.get_lines()
        assert list(faint.get_ydata()) == [4, 2, 1]
        assert list(training.get_ydata()) == pytest.approx([4, 7 / 3, 1])
        assert list(validation.get_ydata()) == [3, 2.5]
        assert validation.get_marker() == "o"
        assert training.get_linestyle() != validation.get_linestyle()
        assert list(rate.get_lines()[0].get_ydata()) == pytest.approx([5e-4, 2.5e-4, 1e-3 / 6])
        assert rate.get_xlabel() == "step"
        (legend,) = figure.legends
        assert legend.get_title().get_text() == "Training of mine: validation bits per byte 3.75 at best"
        assert [text.get_text() for text in legend.get_texts()] == ["training", "validation"]
        assert len(metric.get_lines()) == 3

    def test_several_runs_differ_in_colour_dashes_and_markers(self, tmp_path: Path) -> None:
        runs = {f"run {n}": write(tmp_path / str(n), small_run(tmp_path), LINES) for n in range(6)}
        figure = plot_runs(runs, x="time", log_y=True)
        lines = figure.axes[0].get_lines()
        for kind in (lines[::2], lines[1::2]):
            styles = {(line.get_color(), str(line._dash_pattern), line.get_marker()) for line in kind}  # type: ignore[attr-defined]
            assert len(styles) == 6
            assert len({(str(line._dash_pattern), line.get_marker()) for line in kind}) == 5  # type: ignore[attr-defined]
        assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
        assert figure.axes[-1].get_xlabel() == "seconds of training"
        assert figure.legends[0].get_texts()[0].get_text().startswith("run 0: validation")

    def test_seeds_have_a_band(self, tmp_path: Path) -> None:
        runs = seeds_and_rates(small_run(tmp_path), 2)
        begin_folder(tmp_path / "seeds", runs)
        for number, (name, config) in enumerate(runs.items()):
            write(tmp_path / "seeds" / name, config, [train_line(1, number), train_line(2, 2.0 * number)])
        figure = plot_runs([tmp_path / "seeds"], x="units")
        assert len(figure.axes[0].collections) == 1
        assert list(figure.axes[0].get_lines()[0].get_ydata()) == [0.5, 1]
        assert figure.axes[-1].get_xlabel() == "tokens read"
        assert figure.legends[0].get_title().get_text() == "Training of seeds (mean of 2)"

    def test_hours_are_told_in_hours(self, tmp_path: Path) -> None:
        lines = [train_line(1, 2.0, 60.0), train_line(2, 1.0, 3 * 3600.0)]
        figure = plot_runs([write(tmp_path / "long", small_run(tmp_path), lines)], x="time")
        assert figure.axes[-1].get_xlabel() == "hours of training"
        assert list(figure.axes[0].get_lines()[0].get_xdata()) == pytest.approx([1 / 60, 3])

    @pytest.mark.usefixtures(toy.__name__)
    def test_what_does_not_belong_together(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = write(tmp_path / "text", small_run(tmp_path), [train_line(1, -2.0)])
        plane = RunConfig(model=ToyConfig(), data=ToyDataConfig(), train=train_config(steps=1))
        other = write(tmp_path / "toy", plane, [{**train_line(1, 2.0), "sequences": 8}])
        with pytest.raises(ConfigError, match="toy by accuracy and counts sequences; plot them apart"):
            plot_runs([text, other])
        with pytest.raises(ConfigError, match="the loss goes down to -2, which has no logarithm; leave out log_y"):
            plot_runs([text], log_y=True)
        with pytest.raises(ConfigError, match="smooth=0"):
            plot_runs([text], smooth=0)
        with pytest.raises(ConfigError, match="no runs to plot were given"):
            plot_runs([])
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(InputError, match=r'plots need matplotlib.*pip install "statewise\[plot\]"'):
            plot_runs([text])

    def test_two_folders_of_one_name_keep_apart(self, tmp_path: Path) -> None:
        config = small_run(tmp_path)
        folders = [write(tmp_path / place / "run", with_train(config, seed=n), LINES) for n, place in enumerate("ab")]
        texts = [text.get_text() for text in plot_runs(folders).legends[0].get_texts()]
        assert [text.split(":")[0] for text in texts[:2]] == [str(folder) for folder in folders]
