"""Benchmarks as commands: tables, profiles, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise.benchmark import memory, peers
from statewise.benchmark.bars import Bar
from statewise.benchmark.case import OURS, Missing, Workload
from statewise.benchmark.processor import describe_here, describe_processor, processor
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
    table = bars_table([record | {"processor": "M, family 6; C kernels in avx2, 2 threads"} for record in records])
    assert table.title == "bars on M, family 6; C kernels in avx2, 2 threads"
    assert [row[2:] for row in table.rows] == [("2", ">= 1.5", "yes"), ("", "<= 1.5", "absent")]
    assert table.notes == ("1 of 1 hold",)
    assert len(workloads_table().rows) == len(WORKLOADS) + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benchmark", "skan"], "'skan' is unknown; use one of bars, ceilings, errors, scan"),
        (
            ["benchmark", "bars", "--plot", "x.png"],
            "--plot: benchmark bars does not use it; leave it out",
        ),
        (["benchmark", "--plot", "x.png"], "--plot: the list of benchmarks does not use it"),
        (["benchmark", "--quick"], "--quick: the list of benchmarks does not use it; leave it out, or measure bars, "),
        (["benchmark", "--threads", "1"], "--threads: the list of benchmarks does not use it"),
        (["benchmark", "errors", "--seconds", "9"], "or measure bars, ceilings or a workload, such as scan"),
        (["benchmark", "errors", "--no-memory"], "--no-memory: benchmark errors does not use it"),
        (["benchmark", "ceilings", "--no-memory"], "leave it out, or measure a workload, such as scan"),
        (["benchmark", "bars", "--no-memory"], "--no-memory: benchmark bars does not use it"),
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
    for name in ("run_workload", "run_bars", "measure_ceilings", "measure_errors"):  # refused before anything runs
        monkeypatch.setattr(f"statewise.benchmark.command.{name}", None)
    assert run(arguments) != 0
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_default_of_an_option_is_none_that_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"elementary": [], "kernels": [], "processor": "here"}
    monkeypatch.setattr("statewise.benchmark.command.measure_errors", lambda **options: errors)
    assert run(["benchmark", "errors", "--seconds", "2", "--memory", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == errors


def test_bars_name_their_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    bars = [Bar(name=name, setting="", bar=1, measure=lambda measured: 2.0) for name in ("a", "b")]
    monkeypatch.setattr("statewise.benchmark.command.all_bars", lambda: bars)
    assert run(["benchmark", "bars", "--quick", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in records] == ["a", "b"]  # a list, which scripts read
    assert [record["processor"] for record in records] == [describe_here()] * 2
    assert run(["benchmark", "bars", "--quick", "--no-json"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"bars on {describe_processor(processor())}"[:40] in shown


def test_a_peer_that_is_not_installed_says_how() -> None:
    with pytest.raises(Missing, match=r'pip install "statewise\[bench\]"'):
        peers.require("no_such_package")
    with pytest.raises(ConfigError, match="unknown"):
        find_workload("nothing")
