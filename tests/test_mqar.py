"""Reproduction of MQAR: sizes of states, the end of a run, and the whole at its smallest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from statewise.errors import ConfigError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.mqar.experiment import run_config, state_size, train_and_test
from statewise.reproduce.mqar.settings import SIZES, MqarSettings
from statewise.train.report import Reporter

PLOTS = find_spec("matplotlib") is not None


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
            found = [state_size(run_config(config, model, size, 64, 1e-3)) for size in range(3)]
            assert found == sizes == sorted(sizes)

    def test_attention_holds_as_much_after_the_whole_row(self) -> None:
        run = run_config(MqarSettings(), "attention", 0, 128, 1e-3)
        model = run.model.build()
        _, state = model(torch.zeros(1, 128, dtype=torch.int64), model.initial_state(1))
        kept = sum(s.keys[:, int(s.start) : int(s.end)].numel() * 2 for s in state.layers)
        assert kept == state_size(run)

    def test_others_do_not_grow(self) -> None:
        for model in ("h3", "linear", "mamba2"):
            run = run_config(MqarSettings(), model, 0, 64, 1e-3)
            built = run.model.build()
            _, state = built(torch.zeros(1, 9, dtype=torch.int64), built.initial_state(1))
            assert sum(leaf.numel() for leaf in pytree.tree_leaves(state.layers)) == state_size(run)


class TestSettings:
    def test_runs(self) -> None:
        config = MqarSettings()
        run = run_config(config, "mamba2", 1, 128, 3e-3)
        assert (run.train.lr, run.train.epochs, run.data.n_pairs) == (3e-3, 12, 8)  # type: ignore[attr-defined]
        assert run.model.max_positions is None  # type: ignore[attr-defined]
        assert run_config(config, "linear", 1, 128, 3e-3).model.max_positions == 128  # type: ignore[attr-defined]
        assert all(len(sizes) == 3 for sizes in SIZES.values())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"models": ("h4",)}, "use some of h3, linear, mamba2, attention"),
            ({"lengths": (64,)}, "give one of each for every length"),
            ({"rates": ()}, "give at least one rate"),
            ({"n_sizes": 4}, "use 1 to 3"),
            ({"pairs": (4, 80)}, "n_pairs"),
            ({"workers": 0}, "workers is at least 1"),
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
        run = run_config(config, "attention", 2, 8, 3e-3)
        found = train_and_test(run, str(tmp_path / "run"), Reporter())
        assert found["stopped_early"]
        assert found["course"][-1][1] >= 0.6
        assert all(accuracy < 0.6 for _, accuracy in found["course"][:-1])
        assert found["steps"] < 40 * 8
        assert found["accuracy"] > 0.4
        again = train_and_test(run, str(tmp_path / "run"), Reporter())  # done: nothing is trained
        assert again == found

    def test_quick(self, tmp_path: Path) -> None:
        few = ["n_train=128", "n_test=64", 'models=["h3","attention"]', "rates=[1e-9,1e-2]", "tuning=1"]
        config = settings("mqar", quick=True, assignments=few)
        outcome = reproduce("mqar", tmp_path / "run", config, plots=PLOTS)
        assert outcome.record is not None
        figures = outcome.record["figures"]
        tuned = {f"rate-{model}-{rate}" for model in ("h3", "attention") for rate in ("1e-09", "0.01")}
        assert set(figures) == {"h3-32-0", "attention-32-0", *tuned}
        assert figures["h3-32-0"]["state"] == 2 * 32 * 23
        assert figures["h3-32-0"]["lr"] == figures["attention-32-0"]["lr"] == 1e-2  # the other one learns nothing
        page = (tmp_path / "run" / "report.md").read_text()
        assert "| H3, width 32 | 1,472 |" in page
        assert not PLOTS or (tmp_path / "run" / "mqar.png").exists()
