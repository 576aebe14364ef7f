"""Each reproduction that trains a model: its quick form runs and reports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_reports import figures, quick
from training_runs import with_train

from statewise.data.images import FASHION_MNIST_FOLDER
from statewise.errors import ConfigError, DataError
from statewise.mixers.time_invariant import TimeInvariantMixer
from statewise.reproduce import baselines, reproduce, settings
from statewise.reproduce import lssl_vs_s4 as lssl
from statewise.reproduce import s4_vs_transformer as transformer
from statewise.reproduce.trained_task import TrainedTaskSettings, run_config
from statewise.reproduce.training import load_checkpoint, train_and_test
from statewise.reproduce.work import open_work
from statewise.training import RunConfig
from statewise.training.report import Reporter

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs the extra tasks")


needs_statsmodels = pytest.mark.skipif(find_spec("statsmodels") is None, reason="needs the extra tasks")


class TestLsslVsS4:
    def test_quick(self, tmp_path: Path) -> None:
        outcome = quick("lssl-vs-s4", tmp_path / "run", "widths=[8,16]", "length=32")
        found = figures(outcome)["16"]
        assert len(found["seconds"]["LSSL"]) == 2
        assert len(found["seconds"]["S4"]) == 4
        assert found["parameter_bytes"]["LSSL"] == 4 * (16**3 + 2 * 16**2 + 16)  # A, B, C, dt
        assert found["peak_bytes"]["LSSL"] > found["parameter_bytes"]["LSSL"]  # the gradients alone are as much
        assert found["speed_ratio"] == pytest.approx(found["ms"]["LSSL"] / found["ms"]["S4"])
        assert outcome.record["bars"] == []  # type: ignore[index]

    def test_bars_and_published_figures(self) -> None:
        part = {"seconds": {"LSSL": [3.1], "S4": [0.1]}, "peak_bytes": {"LSSL": 800, "S4": 2}, "parameter_bytes": {}}
        report = lssl.report(lssl.LsslVsS4Settings(widths=(512,)), {"width-512": part})
        assert [(bar.bar, bar.holds) for bar in report.bars] == [(30.0, True), (400.0, True)]
        assert report.tables[0].rows[0][1:4] == ("140.7", "4.75", "29.6x")
        assert report.tables[1].rows[0][3] == "392.2x"

    def test_step_gives_all_gradients_and_is_the_layers(self) -> None:
        for mixer in lssl.layers(8, torch.device("cpu")).values():
            u, upstream = torch.randn(2, 1, 12, 8)
            lssl.training_step(mixer, u, upstream)
            learned = {name for name, p in mixer.named_parameters() if p.grad is not None}
            dynamics = {f"dynamics.{name}" for name, _ in mixer.dynamics.named_parameters()}
            assert learned == dynamics | {"readout.C"}
            assert all(p.grad.abs().sum() > 0 for p in mixer.parameters() if p.grad is not None)
            assert _systems(mixer) == 8

    @pytest.mark.parametrize(("field", "value"), [("widths", (3,)), ("widths", ()), ("rounds", 0)])
    def test_settings(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            lssl.LsslVsS4Settings(**{field: value})


def _systems(mixer: TimeInvariantMixer) -> int:
    """How many systems of their own there are."""
    return len(mixer.dynamics.B)  # type: ignore[arg-type]


class TestS4VsTransformer:
    def test_quick(self, tmp_path: Path) -> None:
        outcome = quick("s4-vs-transformer", tmp_path / "run", "lengths=[16,32]", "batches=[2,1]", "n_layers=1")
        found = figures(outcome)
        assert (found["16"]["batch"], found["16-alone"]["batch"]) == (2, 1)
        assert set(found) == {"16", "16-alone", "32"}  # whose batch is one sequence
        assert found["32"]["speed_ratio"] == pytest.approx(found["32"]["ms"]["Transformer"] / found["32"]["ms"]["S4"])
        assert outcome.record["bars"] == []  # type: ignore[index]
        assert f"{found['16']['parameters']['S4']:,}" in outcome.record["setting"]  # type: ignore[index]

    def test_models(self) -> None:
        config = transformer.S4VsTransformerSettings()
        stacks = transformer.models(config, torch.device("cpu"))
        counts = {name: sum(p.numel() for p in model.parameters()) for name, model in stacks.items()}
        assert counts["Transformer"] == 4 * (4 * 256**2 + 2 * 4 * 256**2 + 5 * 256 + 4 * 256)
        assert counts["S4"] < counts["Transformer"]
        assert all(block.mlp is None for block in stacks["S4"].blocks)  # type: ignore[union-attr]

    def test_bars_and_published_figures(self) -> None:
        part = {
            "batch": 8,
            "seconds": {"Transformer": [1.65], "S4": [1.0]},
            "peak_bytes": {"Transformer": 10, "S4": 5},
            "parameters": {"Transformer": 2, "S4": 1},
        }
        config = transformer.S4VsTransformerSettings(alone=False)
        report = transformer.report(config, {f"length-{4**i}": part for i in (5, 6, 7)})
        assert [(bar.bar, bar.holds) for bar in report.bars] == [(1.6, True), (5.2, False)]
        assert [row[2] for row in report.tables[0].rows] == ["1.58x", "5.19x", "-"]
        assert [row[2] for row in report.tables[1].rows] == ["0.43", "0.091", "-"]

    @pytest.mark.parametrize(("field", "value"), [("batches", (1,)), ("lengths", ()), ("rounds", 0)])
    def test_settings(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            transformer.S4VsTransformerSettings(**{field: value})


class TestTrainedTasks:
    @needs_sklearn
    def test_digits(self, tmp_path: Path) -> None:
        shrunk = [
            'settings=["train.steps=2","train.epochs=null","data.max_length=8","train.evaluate_items=8"]',
            "seeds=[0,1]",
            "max_rows=20",
            "bar=0.01",
        ]
        outcome = quick("digits", tmp_path / "run", *shrunk)
        assert outcome.record is not None
        found = figures(outcome)
        assert set(found["measured"]) == {"0", "1"}
        assert found["mean"] == pytest.approx(sum(found["measured"].values()) / 2)
        assert np.sum(found["evaluations"]["0"]["confusion"]) == 20
        assert outcome.record["bars"][0]["bar"] == 0.01
        assert outcome.record["tables"][0]["rows"][-1][0] == "mean (standard deviation)"
        assert (tmp_path / "run" / "run-1" / "run.json").exists()
        again = quick("digits", tmp_path / "run", *shrunk)
        assert figures(again)["measured"] == found["measured"]

    @needs_sklearn
    @pytest.mark.parametrize("lost", [(1,), (0, 1)])
    def test_a_seed_that_diverges_is_a_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
    ) -> None:
        def with_the_rate(config: TrainedTaskSettings, seed: int) -> RunConfig:
            run = run_config(config, seed)
            return with_train(run, lr=1e30) if seed in lost else run

        monkeypatch.setattr("statewise.reproduce.trained_task.run_config", with_the_rate)
        few = 'settings=["train.steps=3","train.epochs=null","data.max_length=8","train.evaluate_items=8"]'
        config = settings("digits", quick=True, assignments=[few, "max_rows=10", "seeds=[0,1]", "bar=0.01"])
        for _ in range(2):
            outcome = reproduce("digits", tmp_path / "run", config, plots=False)
            assert outcome.record is not None
            found = figures(outcome)
            assert set(found["diverged"]) == {str(seed) for seed in lost}
            assert all("step " in what for what in found["diverged"].values())
            assert found["mean"] is None
            assert "diverged" in str(outcome.record["tables"][0]["rows"][1])
            assert [(bar["ours"], bar["holds"]) for bar in outcome.record["bars"]] == [(None, False)]

    @needs_sklearn
    def test_answers_that_are_not_finite_are_a_result(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A state may grow beyond float32 on rows that are longer than what was trained on."""

        def broken(run: RunConfig, folder: Path, which: str = "best") -> Any:
            model = load_checkpoint(run, folder, which)
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
            return model

        monkeypatch.setattr("statewise.reproduce.training.load_checkpoint", broken)
        few = 'settings=["train.steps=2","train.epochs=null","data.max_length=8","train.evaluate_items=8"]'
        run = run_config(settings("digits", quick=True, assignments=[few]), 0)
        found = train_and_test({"seed": run}, str(tmp_path / "run"), 10, Reporter())
        assert found["seeds"]["seed"]["diverged"].startswith("on the test split: the model's outputs are not finite")

    @needs_sklearn
    def test_a_run_that_was_stopped_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import os
        import signal

        from statewise.reproduce.progress import Watcher
        from statewise.training.report import Reporter

        class Stops(Reporter):
            def progress(self, fraction: float, record: Any) -> None:
                if record["step"] == 1:
                    os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(Watcher, "training", lambda self: Stops())
        few = 'settings=["train.steps=3","train.epochs=null","data.max_length=8","train.evaluate_items=8"]'
        config = settings("digits", quick=True, assignments=[few, "max_rows=10"])
        stopped = reproduce("digits", tmp_path / "run", config, plots=False)
        assert (stopped.signal, stopped.exit_code) == (signal.SIGTERM, 143)
        monkeypatch.undo()
        outcome = reproduce("digits", tmp_path / "run", config, plots=False)
        assert outcome.exit_code == 0
        lines = (tmp_path / "run" / "run-0" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) >= 1

    @needs_statsmodels
    def test_co2(self, tmp_path: Path) -> None:
        outcome = quick("co2", tmp_path / "run")
        assert "skill" in figures(outcome)["evaluations"]["0"]
        assert settings("co2").bar == 0.0

    @needs_sklearn
    def test_baselines(self, tmp_path: Path) -> None:
        outcome = quick("baselines", tmp_path / "run", "seeds=[0,1]", 'arms=["s4d","gru"]')
        assert outcome.record is not None
        runs = figures(outcome)["runs"]
        assert set(runs) == {"s4d-0", "s4d-1", "gru-0", "gru-1"}
        (table,) = outcome.record["tables"]
        rows = {row[0]: row for row in table["rows"]}
        accuracy = np.mean([runs[f"gru-{seed}"]["evaluation"]["accuracy"] for seed in (0, 1)])
        assert rows["GRU"][1] == f"{accuracy:.1%}"
        assert all(run["peak_bytes"] > 1e5 for run in runs.values())
        assert [*rows["GRU"][4:6]] == ["4", "0.002"]  # steps and rate
        told = outcome.record["setting"]
        assert "not those of the preset" in told
        assert "train.budget.steps=4" in told
        assert "Of the test split 16 rows were read." in told
        again = quick("baselines", tmp_path / "run", "seeds=[0,1]", 'arms=["s4d","gru"]')
        assert figures(again)["runs"] == runs
        there = Path(FASHION_MNIST_FOLDER).is_dir()
        for preset in ("acsf1", "co2", *["fashion-mnist"] * there):  # what is small for one is a field of all
            config = settings("baselines", quick=True, assignments=[f"preset={preset}"])
            assert set(baselines.trials(config, open_work(tmp_path / preset, "baselines", config))) == {
                f"{arm}-0" for arm in config.arms
            }

    @pytest.mark.parametrize("preset", ["acsf1", "spoken-digits", "fashion-mnist", "co2"])
    def test_the_arms_of_baselines(self, preset: str) -> None:
        from statewise.reproduce.baselines import ARMS, BaselinesSettings, run_config

        for arm in ARMS:
            run = run_config(BaselinesSettings(preset=preset), arm, 3)
            assert run.train.seed == 3
            model = run.model.build()
            names = {type(module).__name__ for module in model.modules()}
            assert (
                ({"S4D": "S4D", "attention": "Attention", "GRU": "GRU", "causal CNN": "TCN", "LSSL": "LSSL"}[ARMS[arm]])
                in names
            )

    def test_settings(self, tmp_path: Path) -> None:
        for fields, message in (
            ({"preset": "digitz"}, "preset='digitz' is unknown"),
            ({"preset": "digits", "seeds": ()}, "seeds"),
            ({"preset": "digits", "seeds": (1, 1)}, "seeds"),
            ({"preset": "acsf1", "dtw_windows": (2.0,)}, "dtw_windows"),
            ({"preset": "acsf1", "max_rows": 1}, "max_rows"),
            ({"preset": "co2", "dtw": True}, "dtw is for labelled"),
        ):
            with pytest.raises(ConfigError, match=message):
                TrainedTaskSettings(**fields)  # type: ignore[arg-type]
        config = TrainedTaskSettings(preset="fashion-mnist", folder="data", settings=("train.lr=0.5",))
        with pytest.raises(DataError, match="does not exist"):
            run_config(config, 3)
        with pytest.raises(ConfigError, match="have no folder"):
            run_config(TrainedTaskSettings(preset="co2", folder="data"), 0)
        run = run_config(TrainedTaskSettings(preset="fashion-mnist", folder="data"), 3)
        assert run.train.seed == 3
        assert run.data.folder == str(Path("data").absolute())  # type: ignore[attr-defined]
