"""metrics.jsonl survives kills; the reporters say what they should; signals are noted."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from statewise.errors import CheckpointError
from statewise.training.metrics import MetricsFile, cut_metrics, read_metrics
from statewise.training.report import JsonReporter, TerminalReporter, make_reporter
from statewise.training.signals import StopSignals
from statewise.training.tasks.language import LanguageTask


def line(step: int) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 1 / (step + 1)}


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, keep_to_step=0) as metrics:
        for step in range(5):
            metrics.write(line(step))
        metrics.sync()
    assert read_metrics(path) == [line(step) for step in range(5)]


@pytest.mark.parametrize("n_bytes", [1, 10, 39])
def test_half_a_last_line_is_tolerated_and_cut(tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = b"".join(json.dumps(line(step)).encode() + b"\n" for step in range(4))
    path.write_bytes(whole[:-n_bytes])
    kept = 4 if n_bytes == 1 else 3  # only the newline is missing
    assert [record["step"] for record in read_metrics(path)] == list(range(kept))
    with MetricsFile(path, keep_to_step=10) as metrics:
        metrics.write(line(9))
    assert [record["step"] for record in read_metrics(path)] == [*range(kept), 9]


def test_cut_back_to_a_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line(step)) + "\n" for step in (1, 2, 2, 3, 4)))
    cut_metrics(path, 2)
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for damage in ('{"kind": "tr', "[1]", '{"kind": "train"}'):
        path.write_text(json.dumps(line(1)) + "\n" + damage + "\n" + json.dumps(line(3)) + "\n")
        with pytest.raises(CheckpointError, match="line 2"):
            read_metrics(path)
    with pytest.raises(CheckpointError, match="there is no"):
        read_metrics(tmp_path / "none.jsonl")


@pytest.mark.parametrize("damage", [b'{"kind": "tr', b"\xff\x00", b'{"step": 2, "loss": NaN}', b""])
def test_a_damaged_file_is_kept_aside_and_its_readable_lines_go_on(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    for name in ("metrics.jsonl.damaged", "metrics.jsonl.damaged-2"):
        lines = [json.dumps(line(1)).encode(), damage, json.dumps(line(3)).encode(), json.dumps(line(9)).encode(), b""]
        path.write_bytes(b"\n".join(lines))
        whole = path.read_bytes()
        with MetricsFile(path, keep_to_step=3) as metrics:
            assert metrics.damaged == tmp_path / name
        assert (tmp_path / name).read_bytes() == whole
        assert read_metrics(path) == [line(1), line(3)]
    with MetricsFile(path, keep_to_step=3) as metrics:
        assert metrics.damaged is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", keep_to_step=0)
    metrics.close()
    metrics._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with metrics, pytest.raises(CheckpointError, match=r"metrics\.jsonl: No space left"):
        metrics.write(line(1))


def records() -> list[dict[str, object]]:
    group = {"group": "maps", "optimizer": "AdamW", "tensors": 2, "parameters": 1234, "lr": 0.001, "weight_decay": 0.1}
    return [
        {
            "kind": "start",
            "folder": "runs/a",
            "step": 3,
            "parameters": 1234,
            "device": "cpu",
            "data": "plays: 38 documents",
            "groups": [group],
        },
        {"kind": "evaluation", "step": 4, "loss": 1.5, "bits_per_byte": 2.25, "best": True},
        {"kind": "checkpoint", "step": 4, "path": "runs/a/checkpoints/step-00000004"},
        {"kind": "stop", "step": 4, "message": "stopped [bold]here[/bold]"},
    ]


TRAIN = {
    "kind": "train",
    "step": 4,
    "seconds": 1.0,
    "loss": 1.6,
    "bits_per_byte": 2.3,
    "gradient_norm": 0.5,
    "lr": 0.001,
    "tokens": 64,
    "tokens_per_second": 12345.0,
}


def test_json_lines() -> None:
    out = io.StringIO()
    reporter = make_reporter(out)
    assert isinstance(reporter, JsonReporter)
    for record in records():
        reporter.event(record)
    reporter.progress(0.5, TRAIN)
    reporter.close()
    assert [json.loads(text) for text in out.getvalue().splitlines()] == records()


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_shows_a_bar_and_the_events(width: int) -> None:
    from rich.console import Console

    out = io.StringIO()
    reporter = TerminalReporter(Console(file=out, force_terminal=True, width=width, color_system=None))
    reporter.begin(LanguageTask)  # only what the class says is shown
    start, *others = records()
    reporter.event(start)
    for fraction in (0.25, 0.5):
        reporter.progress(fraction, TRAIN)
        reporter.event(TRAIN)
    for record in others:
        reporter.event(record)
    reporter.close()
    shown = out.getvalue()
    for text in (
        "maps",
        "plays: 38 documents",
        "1,234 parameters on cpu",
        "continues from step 3",
        "loss 1.600 2.300 bits/byte",
        "12,345 tok/s",
        "|g| 0.50",
        "50%",
        "step 4: validation loss 1.5000, 2.2500 bits/byte, the best so far",
        "saved runs/a/checkpoints/step-00000004",
        "stopped [bold]here[/bold]",
    ):
        assert text in shown, text


def test_a_terminal_gets_the_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_reporter(Terminal()), TerminalReporter)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number: int) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("asked_first", [False, True])
def test_asking_is_not_a_signal(asked_first: bool) -> None:
    """Whoever ends all processes sends each a signal, while the parent asks: neither is the second that kills."""
    assert not StopSignals.ask(signal.SIGTERM)
    with StopSignals() as stop:
        if asked_first:
            assert StopSignals.ask(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert StopSignals.ask(signal.SIGTERM)
        assert stop.received == (signal.SIGTERM if asked_first else signal.SIGINT)
    assert not StopSignals.ask(signal.SIGTERM)


def test_the_second_signal_kills() -> None:
    code = (
        "import importlib.util, os, signal, sys\n"
        "spec = importlib.util.spec_from_file_location('signals', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "with module.StopSignals() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(stop.received, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    file = sys.modules[StopSignals.__module__].__file__
    assert file is not None
    result = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, f"{int(signal.SIGINT)}\n")


def test_in_another_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as stop:
            seen.extend((signal.getsignal(signal.SIGINT), stop.received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, None]
