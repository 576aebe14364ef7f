"""What a measurement was made on: a figure without its machine says little."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from statewise import __version__
from statewise.errors import DataError
from statewise.memory import available_memory


def environment() -> dict[str, Any]:
    """The machine and the versions, as JSON data: what every part of a claim keeps with its result."""
    record: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "statewise": __version__,
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # it was used
        record["gpu"] = torch.cuda.get_device_name()
    return record


def measured(compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What ``compute()`` gives, with the machine, the seconds and the seconds of all cores."""
    begun, cpu = time.monotonic(), time.process_time()
    result = dict(compute())
    spent = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu}
    return {"environment": environment(), **spent, "result": result}


def today() -> str:
    """The date and time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def cpu_model() -> str:
    """The name that the processor gives itself, or the architecture where it gives none."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model") and value.strip():
                return value.strip()
    except OSError:
        pass  # not a Linux system
    return platform.processor() or platform.machine()


def require_memory(n_bytes: int, what: str, remedy: str) -> None:
    """Refuses what this machine cannot hold, before minutes are spent on it; if that is unknown, nothing.

    Errors: DataError, with the bytes needed and the bytes free.
    """
    free = available_memory(torch.device("cpu"))
    if free is not None and free < n_bytes:
        raise DataError(
            f"{what} needs about {n_bytes / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB are free; {remedy}"
        )
