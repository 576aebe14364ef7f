"""Benchmarks as commands: tables, profiles, mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from statewise.benchmark import memory, peers
from statewise.benchmark.case import OURS, Missing, Workload
from statewise.benchmark.profile import STEPS, profile_model
from statewise.benchmark.run import find_workload, run_workload
from statewise.benchmark.show import bars_table, workload_tables, workloads_table
from statewise.benchmark.workloads import WORKLOADS, models, time_invariant
from statewise.cli import run
from statewise.errors import ConfigError


def test_peak_memory_is_above_the_inputs() -> None:
    kept = torch.zeros(2**20)

    def action() -> torch.Tensor:
        return (kept + 1).mul(2).add(3)[: 2**19].clone()

    peak, outputs = memory.raised_by(action)
    assert outputs == 2**21
    assert 2**22 <= peak <= 5 * 2**22


def test_peak_memory_in_a_fresh_process() -> None:
    name = time_invariant.case_name("256 x 4,096", False)
    found = memory.peak_memory("convolution", name, "torch.fft", threads=1)
    assert found.outputs == 4 * 8 * 4096 * 256
    assert found.above_outputs > found.outputs  # spectra of everything


def test_profile_tells_all_of_a_step() -> None:
    model = models.build("mamba2-130m", True)
    record = profile_model(model, length=64, repeats=1)
    assert set(record["steps"]) == set(STEPS)
    for kind, step in record["steps"].items():
        assert abs(sum(part["share"] for part in step["parts"].values()) - 1) < 1e-9
        assert step["milliseconds"] > 0, kind
    training = record["steps"]["training"]["parts"]
    assert {"matrix products", "optimizer", "loss", "SSD", "norms", "short convolution"} <= set(training)


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["benchmark", "--json"]) == 0
    assert {"scan", "bars"} <= set(json.loads(capsys.readouterr().out))
    assert run(["benchmark", "convolution", "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["workload"] == "convolution"
    assert "torch.fft" in err
    assert run(["profile", "tiny", "--step", "prefill", "--length", "32", "--no-json"]) == 0
    assert "matrix products" in capsys.readouterr().out


def test_tables(toy: Workload) -> None:
    (first, *_) = workload_tables(run_workload(toy, quick=True, memory=False))
    assert first.columns == ("side", "ms per step", "times ours")
    assert [row[0] for row in first.rows] == [OURS, "theirs"]
    assert "pip install" in first.notes[0]
    records: list[dict[str, Any]] = [
        {"name": "a", "setting": "b", "ratio": 2.0, "bar": 1.5, "kind": "at least", "holds": True},
        {"name": "c", "setting": "d", "ratio": None, "bar": 1.5, "kind": "at most", "holds": None, "why": "absent"},
    ]
    table = bars_table(records)
    assert [row[2:] for row in table.rows] == [("2", ">= 1.5", "yes"), ("", "<= 1.5", "absent")]
    assert table.notes == ("1 of 1 hold",)
    assert len(workloads_table().rows) == len(WORKLOADS) + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benchmark", "skan"], "'skan' is unknown; use one of bars, ceilings, errors, scan"),
        (["benchmark", "bars", "--plot", "x.png"], "bars have no plot"),
        (["benchmark", "--plot", "x.png"], "--plot needs a workload to draw"),
        (["benchmark", "decoding", "--plot", "x.png"], "decoding is measured at one length"),
        (["benchmark", "scan", "--plot", "/nonexistent/x.png"], "there is no folder /nonexistent"),
        (["benchmark", "scan", "--plot", "x.xyz"], "ends in one of .png"),
        (["benchmark", "scan", "--seconds", "nan"], "--seconds nan is not a valid duration"),
        (["benchmark", "bars", "--seconds", "inf"], "--seconds inf is not a valid duration"),
        (["profile", "no-such-model"], "'no-such-model' is neither a run folder nor a preset"),
        (["profile", "digits"], "name a run folder or one of demo, tiny, mamba-130m"),
        (["profile", "tiny", "--step", "thinking"], "'thinking' is unknown; use training, prefill, decoding"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".png" in "".join(arguments) or ".xyz" in "".join(arguments):
        pytest.importorskip("matplotlib")
    monkeypatch.setattr("statewise.benchmark.command.run_workload", None)  # refused before anything runs
    assert run(arguments) != 0
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_peer_that_is_not_installed_says_how() -> None:
    with pytest.raises(Missing, match=r'pip install "statewise\[bench\]"'):
        peers.require("no_such_package")
    with pytest.raises(ConfigError, match="unknown"):
        find_workload("nothing")
