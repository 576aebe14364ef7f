"""Reproduction of MQAR: sizes of states, the end of a run, and the whole at its smallest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from statewise.errors import ConfigError, DivergedError, TrainingError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.mqar import SIZES, Cell, MqarSettings, run_config, state_size, train_and_test
from statewise.reproduce.progress import Watcher
from statewise.training.report import Reporter

PLOTS = find_spec("matplotlib") is not None


class Heard(Watcher):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def event(self, record: Any) -> None:
        self.records.append(dict(record))


class TestStateSize:
    def test_by_hand(self) -> None:
        config = MqarSettings()
        expected = {
            "h3": [2 * d * (7 + 16) for d in (32, 64, 128)],  # the register, and 8 complex numbers a channel
            "linear": [2 * (d + 1) * d for d in (32, 64, 128)],  # values and the normaliser, times features
            "mamba2": [2 * (2 * d * n + 3 * (2 * d + 2 * n)) for d, n in ((32, 16), (64, 16), (64, 64))],
            "attention": [2 * 2 * 64 * d for d in (16, 32, 64)],  # keys and values at the full length
        }
        for model, sizes in expected.items():
            found = [state_size(run_config(config, Cell(model, size, 0), 1e-3)) for size in range(3)]
            assert found == sizes == sorted(sizes)

    def test_attention_holds_as_much_after_the_whole_row(self) -> None:
        run = run_config(MqarSettings(), Cell("attention", 0, 1), 1e-3)
        model = run.model.build()
        _, state = model(torch.zeros(1, 128, dtype=torch.int64), model.initial_state(1))
        kept = sum(s.keys[:, int(s.start) : int(s.end)].numel() * 2 for s in state.layers)
        assert kept == state_size(run)

    def test_others_do_not_grow(self) -> None:
        for model in ("h3", "linear", "mamba2"):
            run = run_config(MqarSettings(), Cell(model, 0, 0), 1e-3)
            built = run.model.build()
            _, state = built(torch.zeros(1, 9, dtype=torch.int64), built.initial_state(1))
            assert sum(leaf.numel() for leaf in pytree.tree_leaves(state.layers)) == state_size(run)


class TestSettings:
    def test_runs(self) -> None:
        config = MqarSettings()
        run = run_config(config, Cell("mamba2", 1, 1), 3e-3)
        assert (run.train.optimizer.lr, run.train.budget.epochs, run.data.n_pairs) == (3e-3, 12, 8)  # type: ignore[attr-defined]
        assert run.model.max_positions is None  # type: ignore[attr-defined]
        assert run_config(config, Cell("linear", 1, 1), 3e-3).model.max_positions == 128  # type: ignore[attr-defined]
        assert all(len(sizes) == 3 for sizes in SIZES.values())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"models": ("h4",)}, "models.0='h4' is unknown; did you mean 'h3'"),
            ({"lengths": (64,)}, "differ in length; give as many of each"),
            ({"weight_std": 0.0}, r"MqarSettings\.weight_std=0\.0 is out of range; expected a number above 0"),
            ({"weight_std": -1, "models": ("mamba2",)}, r"MqarSettings\.weight_std=-1 is out of range"),
            ({"n_sizes": 4}, "n_sizes=4 is out of range; expected an integer from 1 to 3"),
            ({"pairs": (4, 80)}, "n_pairs"),
            ({"lengths": (64, 64), "pairs": (4, 4)}, "the same rows twice"),
            ({"epochs": (24, 0)}, "epochs.1=0"),
            ({"rates": (1e-3, -1.0)}, r"rates\.1=-1\.0"),
            ({"n_train": 10}, "n_train=10, batch_size=64"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            MqarSettings(**changes)


class TestRuns:
    def test_a_run_ends_when_it_has_the_accuracy(self, tmp_path: Path) -> None:
        config = MqarSettings(
            lengths=(8,), pairs=(1,), epochs=(40,), vocab_size=6, n_train=256, n_test=64, batch_size=32, stop_at=0.6
        )
        run = run_config(config, Cell("attention", 2, 0), 3e-3)
        found = train_and_test(run, str(tmp_path / "run"), Reporter())
        assert found["stopped_early"]
        assert found["course"][-1][1] >= 0.6
        assert all(accuracy < 0.6 for _, accuracy in found["course"][:-1])
        assert found["steps"] < 40 * 8
        assert found["accuracy"] > 0.4
        again = train_and_test(run, str(tmp_path / "run"), Reporter())  # done: nothing is trained
        assert again == found

    def test_quick(self, tmp_path: Path) -> None:
        few = ["n_train=128", "n_test=64", 'models=["h3","attention"]', "rates=[1e-9,1e-2]"]
        config = settings("mqar", quick=True, assignments=few)
        outcome = reproduce("mqar", tmp_path / "run", config, plots=PLOTS)
        assert outcome.record is not None
        figures = outcome.record["figures"]
        assert set(figures) == {"h3-32-2-0", "attention-32-2-0"}
        assert figures["h3-32-2-0"]["state"] == 2 * 32 * 23
        assert figures["h3-32-2-0"]["lr"] == figures["attention-32-2-0"]["lr"] == 1e-2  # the other one learns nothing
        assert set(figures["h3-32-2-0"]["by_rate"]) == {"1e-09", "0.01"}
        page = (tmp_path / "run" / "report.md").read_text()
        assert "| H3, width 32 | 1,472 |" in page
        assert (
            "trained at 1e-09 and, until a run had 99% on rows of its own, at 0.01; it is the best of its runs" in page
        )
        assert "hold the token 0" in page
        assert "minutes" not in page
        assert not PLOTS or (tmp_path / "run" / "mqar.png").exists()

    def test_a_run_that_diverges_is_a_result(self, tmp_path: Path) -> None:
        few = ["n_train=128", "n_test=64", 'models=["linear"]', "n_sizes=2", "workers=1"]
        folder = tmp_path / "run"
        both = settings("mqar", quick=True, assignments=[*few, "rates=[1e8,0.01]"])
        first = reproduce("mqar", folder, both, plots=PLOTS).record
        assert first is not None
        assert first["figures"]["linear-32-2-0"]["by_rate"]["1e+08"] is None
        where = first["figures"]["linear-32-2-0"]["diverged_at"]["1e+08"]
        assert "not finite" in where
        assert str(folder) not in where  # nor what to do about it: the rate is the setting
        assert first["figures"]["linear-32-2-0"]["lr"] == 0.01
        page = (folder / "report.md").read_text()
        assert "Diverged, and not tested: linear-32-2-0 at 1e+08, linear-32-2-1 at 1e+08;" in page
        assert "| 1e+08 diverged |" in page
        assert "at most 1 epoch of batches" in page
        again = reproduce("mqar", folder, both, plots=False).record  # what diverged is done as well
        assert again is not None
        assert again["figures"] == first["figures"]
        # Of the runs themselves all may be lost
        lost = settings("mqar", quick=True, assignments=[*few, "rates=[1e8]"])
        assert reproduce("mqar", tmp_path / "lost", lost, plots=PLOTS).record is not None
        page = (tmp_path / "lost" / "report.md").read_text()
        assert page.count("| diverged | - |") == 2
        assert "Chance is 50.0% among those of the row" in page

    def test_a_rate_is_tried_until_one_is_good_enough(self, tmp_path: Path) -> None:
        """With a goal below chance the first is, for every model; with one that none reaches all are tried."""
        few = ["n_train=64", "n_test=32", 'models=["mamba2"]', "rates=[1e-3,1e-2]"]
        for goal, n_tried in ((1e-9, 1), (1.0, 2)):
            config = settings("mqar", quick=True, assignments=[*few, f"stop_at={goal}"])
            watcher = Heard()
            record = reproduce("mqar", tmp_path / str(n_tried), config, plots=False, watcher=watcher).record
            assert record is not None
            assert len(record["figures"]["mamba2-32-2-0"]["by_rate"]) == n_tried
            assert "at most 2 parts" in watcher.records[0]["message"]
            assert len(list((tmp_path / str(n_tried)).glob("run-*"))) == n_tried

    @pytest.mark.parametrize("error", [TrainingError("no rows"), DivergedError("step 1; begin anew", "step 1")])
    def test_only_divergence_is_a_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TrainingError
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise error

        monkeypatch.setattr("statewise.reproduce.training.train_run", fail)
        arguments = (run_config(MqarSettings(), Cell("linear", 0, 0), 1e-2), str(tmp_path), Reporter())
        if isinstance(error, DivergedError):
            assert train_and_test(*arguments)["diverged"] == "step 1"
        else:
            with pytest.raises(TrainingError, match="no rows"):
                train_and_test(*arguments)

    def test_one_length_with_several_pairs(self, tmp_path: Path) -> None:
        rows = ["lengths=[16,16]", "pairs=[1,3]", "epochs=[1,2]", "n_train=64", "n_test=32"]
        config = settings(
            "mqar", quick=True, assignments=[*rows, 'models=["mamba2"]', "random_non_queries=true", "stop_at=1"]
        )
        outcome = reproduce("mqar", tmp_path / "run", config, plots=PLOTS)
        assert outcome.record is not None
        figures = outcome.record["figures"]
        assert {name: (one["pairs"], one["steps"]) for name, one in figures.items()} == {
            "mamba2-16-1-0": (1, 1),
            "mamba2-16-3-0": (3, 2),
        }
        page = (tmp_path / "run" / "report.md").read_text()
        for absent in ("H3", "attention", "token 0", "best of its runs"):  # what was not run
            assert absent not in page
        assert "One rate for all models, 0.01" in page
        assert "hold random tokens" in page
