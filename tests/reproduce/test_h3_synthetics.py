"""The synthetic languages of H3: the published settings, several seeds, stopped and gone on with."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training_runs import with_train

from statewise.errors import ConfigError, InputError, TrainingError
from statewise.reproduce import find, reproduce, settings
from statewise.reproduce.h3_synthetics import (
    MIXERS,
    TASKS,
    H3SyntheticsSettings,
    is_everything,
    run_config,
)
from statewise.reproduce.h3_synthetics import report as make_report
from statewise.reproduce.progress import Watcher
from statewise.reproduce.report import Report, markdown
from statewise.reproduce.training import CPU_FILE, train_and_test
from statewise.training.report import Reporter
from statewise.training.schedule import learning_rate_factor
from statewise.training.tasks import open_task

PLOTS = find_spec("matplotlib") is not None
SMALL = ["n_train=64", "n_validation=16", "n_test=16"]


def test_the_published_settings() -> None:
    config = find("h3-synthetics").full()
    for task, epochs, last in zip(TASKS, (400, 200), (5e-5, 0.0)):
        for model in MIXERS:
            run = run_config(config, task, model, 1)
            train: Any = run.train
            assert (train.budget.epochs, train.batch_size, train.seed) == (epochs, 32, 1)
            adamw = train.optimizer
            assert (adamw.lr, adamw.weight_decay, adamw.dynamics_lr_max) == (5e-4, 0.1, 1e-3)
            assert (adamw.weight_decay_of, adamw.clip_norm) == ("all", None)
            at = {p: adamw.lr * learning_rate_factor(p, **vars(train.schedule)) for p in (0.0, 0.1, 0.55, 1.0)}
            first = 1e-6 if task == TASKS[0] else 0.0
            falls = [0.5 * (1 + math.cos(math.pi * p)) if task == TASKS[0] else (1 - p) / 0.9 for p in (0.1, 0.55)]
            rates = [first, *(last + (5e-4 - last) * fall for fall in falls), last]
            assert [at[p] for p in (0.0, 0.1, 0.55, 1.0)] == pytest.approx(rates)
            assert open_task(run).batches.steps_per_epoch == train.reporting.evaluate_every == 157
            language: Any = run.model
            assert (language.d_model, len(language.layers), language.embedding_dropout) == (32, 2, 0.1)
            assert language.max_positions == ({TASKS[0]: 32, TASKS[1]: 23}[task] if model == "attention" else None)
            dropped = [(block.dropout, getattr(block.mixer, "dropout", 0.0)) for block in language.layers]
            assert dropped == [(0.0, 0.1 if model == "attention" else 0.0)] * 2
    names = [type(block.mixer).__name__ for block in run_config(config, TASKS[0], "hybrid", 0).model.layers]  # type: ignore[attr-defined]
    assert names == ["H3Config", "AttentionConfig"]


def test_other_settings_are_told() -> None:
    config = replace(
        H3SyntheticsSettings(), clip_norm=1.0, weight_decay_of="maps", dropout_of="branches", drop_last=True
    )
    train = run_config(config, TASKS[0], "h3", 0).train
    assert (train.optimizer.clip_norm, train.optimizer.weight_decay_of) == (1.0, "maps")
    told = " ".join({*differences(config)} - {*differences(H3SyntheticsSettings())})
    assert "clipped to a norm of 1;" in told
    assert "matrices of maps alone decay" in told
    assert "dropout of 0.1 on each branch" in told
    assert "fill no batch are left out; published" in told
    assert run_config(config, TASKS[0], "h3", 0).train.reporting.evaluate_every == 156
    prefix = replace(H3SyntheticsSettings(), warmup_prefix=True)
    assert "begins where the warm-up ends; published: where" in " ".join(differences(prefix))
    assert [run_config(prefix, task, "h3", 0).train.schedule.warmup_prefix for task in TASKS] == [True, True]
    assert not is_everything(prefix)
    layers: Any = run_config(config, TASKS[0], "attention", 0).model.layers  # type: ignore[attr-defined]
    assert [(block.dropout, block.mixer.dropout) for block in layers] == [(0.1, 0.0)] * 2
    assert is_everything(H3SyntheticsSettings())
    assert not is_everything(config)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"models": ("s4",)}, "models"),
        ({"epochs": (3,)}, "epochs"),
        ({"n_train": 31, "drop_last": True}, "n_train"),
        ({"seeds": (0, -1)}, "seed"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"weight_decay_of": "none"}, "weight_decay_of"),
    ],
)
def test_refusals(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        H3SyntheticsSettings(**change)


def test_every_model_in_a_quick_look(tmp_path: Path) -> None:
    config = settings("h3-synthetics", quick=True, assignments=[*SMALL, 'tasks=["associative-recall"]', "epochs=[1]"])
    outcome = reproduce("h3-synthetics", tmp_path / "run", config, plots=False)
    record: Any = outcome.record
    (table,) = record["tables"]
    assert [row[0] for row in table["rows"]] == [
        "S4D",
        "GSS",
        "H3",
        "H3, then attention",
        "attention",
        "Mamba",
        "Mamba-2",
    ]
    assert [row[1] for row in table["rows"]] == ["86.0", "78.0", "99.8", "-", "100.0", "-", "-"]
    assert record["bars"] == []
    assert all(part["seeds"]["seed-0"]["steps"] == 2 for part in record["figures"]["runs"].values())
    assert record["figures"]["cpu_seconds"] > 0


class Stopping(Watcher):
    """Ctrl-C after so many steps."""

    def __init__(self, at: float) -> None:
        self.at = at

    def training(self) -> Reporter:
        watcher = self

        class Here(Reporter):
            def progress(self, fraction: float, record: Any) -> None:
                if fraction >= watcher.at:
                    watcher.at = 2.0
                    os.kill(os.getpid(), signal.SIGINT)

        return Here()


def test_stopped_and_gone_on_with_to_the_same_numbers(tmp_path: Path) -> None:
    """Two seeds in one part; the bars are there when they are asked for."""
    changes = [*SMALL, 'models=["attention"]', "seeds=[3,5]", "epochs=[2,1]", "bars=true"]
    config = settings("h3-synthetics", quick=True, assignments=changes)
    whole: Any = reproduce("h3-synthetics", tmp_path / "whole", config, plots=False).record
    stopped = reproduce("h3-synthetics", tmp_path / "run", config, plots=False, watcher=Stopping(0.5))
    assert stopped.exit_code == 128 + signal.SIGINT
    cpu = json.loads((tmp_path / "run" / "run-induction-head-attention" / "cpu-seconds.json").read_text())
    record: Any = reproduce("h3-synthetics", tmp_path / "run", config, plots=False).record
    for name, part in record["figures"]["runs"].items():
        there = whole["figures"]["runs"][name]["seeds"]
        assert list(part["seeds"]) == ["seed-3", "seed-5"]
        for seed, found in part["seeds"].items():
            times = ("seconds", "course_seconds")
            assert {k: v for k, v in found.items() if k not in times} == {
                k: v for k, v in there[seed].items() if k not in times
            }
    assert record["figures"]["runs"]["induction-head-attention"]["cpu_seconds"] > cpu > 0
    for table, part in zip(record["tables"], record["figures"]["runs"].values()):
        best = [max(seed["course"]) for seed in part["seeds"].values()]
        assert table["rows"][0][4] == " ".join(f"{100 * accuracy:.1f}" for accuracy in best)
    assert [bar["holds"] for bar in record["bars"]] == [False, False]  # none of minutes: it is not everything


def test_a_kill_leaves_no_kept_step_uncounted(tmp_path: Path) -> None:
    """The file is up to date at each checkpoint, and everything is passed on."""
    heard: list[str] = []

    class Killed(Reporter):
        def event(self, record: Any) -> None:
            heard.append(record["kind"])
            if record["kind"] == "checkpoint":
                assert json.loads(file.read_text()) > 5.0
                heard.append(file.read_text())

    config = settings("h3-synthetics", quick=True, assignments=[*SMALL, "epochs=[1,1]"])
    folder = tmp_path / "run"
    file = folder / CPU_FILE
    folder.mkdir()
    file.write_text("5.0")
    train_and_test({"seed-0": run_config(config, TASKS[0], "attention", 0)}, str(folder), None, Killed())
    assert heard[0] == "start"
    assert {"train", "evaluation", "checkpoint", "end"} < set(heard)
    assert json.loads(file.read_text()) >= json.loads(heard[heard.index("checkpoint") + 1])


def test_a_seed_that_diverges_is_a_result_and_stops_no_other(tmp_path: Path) -> None:
    config = settings("h3-synthetics", quick=True, assignments=[*SMALL, "epochs=[1,1]", "seeds=[0,1]", "bars=true"])
    config = replace(config, models=("attention",), tasks=TASKS[:1], epochs=(1,))
    first, second = (run_config(config, TASKS[0], "attention", seed) for seed in config.seeds)
    bad = with_train(second, lr=1e38)
    runs = {"seed-0": first, "seed-1": bad}
    part = train_and_test(runs, str(tmp_path / "some"), None, Reporter())
    assert part["seeds"]["seed-0"]["diverged"] is None
    assert "step " in part["seeds"]["seed-1"]["diverged"]
    again = train_and_test(runs, str(tmp_path / "some"), None, Reporter())
    assert again["seeds"]["seed-1"] == part["seeds"]["seed-1"]
    assert again["seeds"]["seed-0"]["loss"] == part["seeds"]["seed-0"]["loss"]
    report = make_report(config, {"induction-head-attention": part})
    (row,) = report.tables[0].rows
    assert row[2] == "diverged"
    assert row[3].endswith(" diverged")
    assert [bar.ours for bar in report.bars] == [0.0]
    if PLOTS:
        report.plots[0].write(tmp_path / "plot.png")
    worst = with_train(first, lr=1e37)
    for lost in ({"seed-0": worst, "seed-1": bad}, {"seed-1": bad}):
        for _ in range(2):  # the second time each says what it said
            part = train_and_test(lost, str(tmp_path / f"all-{len(lost)}"), None, Reporter())
            assert all("step " in seed["diverged"] for seed in part["seeds"].values())
            assert part["parameters"] > 0
            assert part["ms_per_step"] is None
    make_report(replace(config, seeds=(1,)), {"induction-head-attention": part})


@pytest.mark.parametrize("n_runs", [1, 2])
def test_only_divergence_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_runs: int) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise InputError("no rows")

    monkeypatch.setattr("statewise.training.tasks.base.Task.validate", refuse)
    config = settings("h3-synthetics", quick=True, assignments=[*SMALL, "epochs=[1,1]"])
    runs = {f"seed-{seed}": run_config(config, TASKS[0], "attention", seed) for seed in range(n_runs)}
    with pytest.raises(TrainingError, match="the evaluation failed: no rows"):
        train_and_test(runs, str(tmp_path), None, Reporter())


def made(cpu_seconds: float = 600.0, **changes: Any) -> Report:
    return made_of(H3SyntheticsSettings(**changes), cpu_seconds)


def differences(config: H3SyntheticsSettings) -> Sequence[str]:
    return made_of(config, 1.0).differences


def made_of(config: H3SyntheticsSettings, cpu_seconds: float) -> Report:
    seed = {"accuracy": 1.0, "validation": 0.99, "epochs": 3.0, "course": [0.99]}
    part = {
        "seeds": {f"seed-{s}": seed for s in config.seeds},
        "cpu_seconds": cpu_seconds,
        "parameters": 9,
        "ms_per_step": 1,
    }
    return make_report(config, {f"{task}-{model}": part for task in config.tasks for model in config.models})


class TestReport:
    def test_all_seeds_of_everything_are_counted(self) -> None:
        report = made()
        assert report.figures["minutes_of_two_cores"] == 14 * 10 / 2
        assert report.tables[0].rows[0][3:5] == ("100.0 100.0 100.0", "99.0 99.0 99.0")
        last = report.bars[-1]
        assert last.ours == 20
        assert "all 3 seeds of everything, more than one seed takes" in last.what
        assert "140.0 minutes of processor time: for all 3 seeds of everything" in report.setting
        assert "all read the same rows" in " ".join(report.differences)

    def test_the_bar_of_minutes_is_of_one_seed(self) -> None:
        """Three seeds that take longer say nothing of one."""
        assert not any("minutes" in bar.what for bar in made(1_200.0).bars)
        assert made(1_200.0, seeds=(0,)).bars[-1].ours == 90 - 140

    @pytest.mark.parametrize(
        "change",
        [{"models": ("h3",)}, {"epochs": (400, 100)}, {"n_train": 320}, {"tasks": TASKS[:1], "epochs": (400,)}],
    )
    def test_no_bar_of_minutes_for_less(self, change: dict[str, Any]) -> None:
        assert not any("minutes" in bar.what for bar in made(**change).bars)

    def test_it_says_nothing_of_what_was_not_run(self) -> None:
        report = made(models=("h3",), tasks=TASKS[1:], epochs=(5,), seeds=(0,))
        page = markdown(report, {"date": "", "seconds": 0.0, "environments": [], "settings": {}}, [])
        for word in ("Mamba", "GSS", "S4D", "Transformer", "hybrid", "cosine", "18 ordinary", "ends early"):
            assert word not in page
        for word in ("seeds", "more than one"):
            assert word not in report.setting + " ".join([*report.tables[0].notes, *report.differences])
