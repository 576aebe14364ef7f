"""Stages that run unattended: each in a process of its own, with a time limit, saved item by item, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statewise.errors import StatewiseError
from statewise.reproduce.hardware import environment, today

Item = Callable[[], Mapping[str, Any]]


class Skipped(Exception):
    """What a stage or an item needs is not here; the message says what."""


@dataclass(frozen=True)
class Settings:
    """device: "cuda", or "cpu" where tests look whether everything runs; quick: tiny sizes; folder: of the results;
    data: of the sets that ``science`` trains on, None for none"""

    device: str
    quick: bool
    folder: Path
    data: Path | None = None

    def arguments(self) -> list[str]:
        given = ["--device", self.device, "--out", str(self.folder), *["--quick"] * self.quick]
        return given + ([] if self.data is None else ["--data-dir", str(self.data)])


@dataclass(frozen=True)
class Stage:
    """items: by name what it measures, one after the other, or ``at_once``; seconds: for all of them together"""

    name: str
    seconds: float
    items: Callable[[Settings], Mapping[str, Item]]
    at_once: int = 1


def path_of(stage: Stage, settings: Settings) -> Path:
    return settings.folder / f"{stage.name}.json"


def run_stages(
    stages: Sequence[Stage], settings: Settings, tell: Callable[[str], None], *, most: int | None = None
) -> dict[str, Any]:
    """All that are not done yet, or the first ``most`` of them, and what all of them found.

    A stage that ran out of time or died goes on where it stopped with the next call; the other stages run anyway.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        if _read(stage, settings).get("state") == "done":
            tell(f"{stage.name}: done before")
            continue
        if most == 0:
            break
        most = None if most is None else most - 1
        begun = time.monotonic()
        command = [sys.executable, "-m", "statewise.benchmark.gpu", "--stage", stage.name, *settings.arguments()]
        log = settings.folder / f"{stage.name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                code: int | None = process.wait(stage.seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)  # with the processes that it has started
                    process.wait()
        record = _read(stage, settings)
        if record.get("state") != "done":
            ended = f"ended with exit code {code}" if code is not None else f"ran out of its {stage.seconds:.0f} s"
            record = {**record, "stage": stage.name, "state": "not done", "why": f"{ended}; see {log.name}"}
            _write(stage, settings, record)
        tell(f"{stage.name}: {record['state']} after {time.monotonic() - begun:.0f} s; {_counts(record)}")
    return {stage.name: _read(stage, settings) for stage in stages}


def run_stage(stage: Stage, settings: Settings) -> None:
    """In this process: what has not been found before, each item saved as soon as it is there."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    record = _read(stage, settings)
    here = {"device": card(settings.device), **environment()}
    if record.get("environment") not in (None, here) or record.get("quick", settings.quick) != settings.quick:
        record = {}  # of another card, another version or other sizes
    found: dict[str, Any] = record.get("items", {})
    record = {"stage": stage.name, "state": "running", "quick": settings.quick, "environment": here, "items": found}
    try:
        items = stage.items(settings)
    except Skipped as reason:
        _write(stage, settings, {**record, "state": "done", "skipped": str(reason), "measured": today()})
        return

    def run(name: str) -> None:
        begun = time.monotonic()
        result = _outcome(items[name])
        found[name] = {**result, "seconds": round(time.monotonic() - begun, 2)}
        _write(stage, settings, record)
        print(name, json.dumps(found[name])[:300], flush=True)

    missing = [name for name in items if name not in found or found[name].get("unfinished")]
    with ThreadPoolExecutor(stage.at_once) as pool:
        list(pool.map(run, missing))
    state = "not done" if any(item.get("unfinished") for item in found.values()) else "done"
    _write(stage, settings, {**record, "state": state, "measured": today()})


def _outcome(item: Item) -> dict[str, Any]:
    try:
        return dict(item())
    except Skipped as reason:
        return {"skipped": str(reason)}
    except (StatewiseError, ImportError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
        # RuntimeError: also memory that is not enough, and what CUDA and Triton raise. The others still run
        return {"error": f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:400]}


def card(device: str) -> str:
    if device != "cuda":
        return device
    return f"{torch.cuda.get_device_name()}, capability {'.'.join(map(str, torch.cuda.get_device_capability()))}"


def _counts(record: Mapping[str, Any]) -> str:
    if "skipped" in record:
        return f"skipped: {record['skipped']}"
    items = list(record.get("items", {}).values())
    failed = sum("error" in item or bool(item.get("failed")) for item in items)
    return f"{len(items)} items, {failed} with failures" + (f"; {record['why']}" if "why" in record else "")


def _read(stage: Stage, settings: Settings) -> dict[str, Any]:
    try:
        found = json.loads(path_of(stage, settings).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(stage: Stage, settings: Settings, record: Mapping[str, Any]) -> None:
    path = path_of(stage, settings)
    aside = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    aside.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    aside.replace(path)
