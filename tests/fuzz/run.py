"""Runs targets for a time and collects what they find; a worker that dies or hangs is a finding too."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuzz.targets import TARGETS

STARTUP = 60.0  # seconds that a worker's imports may take
SEEDS_APART = 1_000_000_000  # cases of one seed are numbered from seed * SEEDS_APART


@dataclass
class Report:
    """What one target did. ``findings`` are blocks of lines that end with the command that repeats the case."""

    target: str
    cases: int = 0
    findings: list[str] = field(default_factory=list)


def run_target(
    name: str,
    seed: int,
    seconds: float,
    *,
    most: int = 20,
    tell: Callable[[str], None] = lambda text: None,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Cases for so many seconds, or until there are ``most`` findings. Each begins after the one before has ended.

    ``environment`` is added to that of the workers: what :func:`fuzz.sanitized.environment` gives.
    """
    report, end = Report(name), time.monotonic() + seconds
    case = seed * SEEDS_APART
    while len(report.findings) < most and (report.cases == 0 or time.monotonic() < end):
        case = _one_worker(report, case, end, most, tell, environment or {}) + 1
    return report


def _one_worker(
    report: Report, first: int, end: float, most: int, tell: Callable[[str], None], environment: Mapping[str, str]
) -> int:
    """Runs a worker until the time is over or it ends by itself; gives the last case that it began."""
    target, again = TARGETS[report.target], " --sanitize" if environment else ""
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz", "--worker", report.target, str(first)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env={**_environment(), **environment},
    )  # fmt: skip
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True),
        threading.Thread(target=_keep_tail, args=(process.stderr, errors), daemon=True),
    ]
    for reader in readers:
        reader.start()
    case, begun, patience = first, False, STARTUP
    try:
        while True:
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                _add(report, case, f"no end after {patience:.0f} seconds", {}, tell, again)
                return case
            if line is None:
                process.wait()
                readers[1].join(1)
                last = errors[-1].strip() if errors else "nothing on standard error"
                code = process.returncode
                _add(report, case, f"the process ended with {code} ({last[:300]})", {}, tell, again)
                if not begun:
                    raise RuntimeError(f"fuzz target {report.target} does not start: {''.join(errors[-20:])}")
                return case
            record: dict[str, Any] = json.loads(line)
            if "finding" in record:
                _add(report, case, f"{record['finding']} [{record['where']}]", record["notes"], tell, again)
            else:
                if begun:
                    report.cases += 1
                case, begun, patience = record["case"], True, target.seconds
            if (time.monotonic() >= end and report.cases) or len(report.findings) >= most:
                return case
    finally:
        process.kill()
        process.wait()


def _add(report: Report, case: int, what: str, notes: dict[str, str], tell: Callable[[str], None], again: str) -> None:
    lines = [f"{report.target}: {what}", *(f"    {name} = {value}" for name, value in notes.items())]
    lines.append(f"    again: PYTHONPATH=tests python -m fuzz {report.target} --case {case}{again}")
    report.findings.append("\n".join(lines))
    tell(report.findings[-1])


def _environment() -> dict[str, str]:
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def _forward(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _keep_tail(stream: IO[str], errors: list[str]) -> None:
    for line in stream:
        errors.append(line)
        del errors[:-200]


def shares(names: Sequence[str], seconds: float) -> dict[str, float]:
    """The seconds of each target."""
    total = sum(TARGETS[name].share for name in names)
    return {name: seconds * TARGETS[name].share / total for name in names}
