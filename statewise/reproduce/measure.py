"""Time and memory of things that are compared, side by side in one process, in turns; and how large models are."""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from statewise.errors import InputError
from statewise.models.base import ModelConfig
from statewise.training.report import Reporter

Action = Callable[[], object]


def time_side_by_side(
    actions: Mapping[str, Action],
    rounds: int,
    *,
    repeats: Mapping[str, int] | None = None,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call: in every round each action is called in turn, ``repeats[name]`` times (once if not named).

    What slows the machine for a while slows all of them, and the order changes from round to round. Call each once
    before, so that nothing is measured that is done only once.

    Errors:  InputError without a round or an action.
    """
    if rounds < 1 or not actions:
        raise InputError(f"nothing to measure: {len(actions)} actions in {rounds} rounds; use at least one of each")
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for i in range(rounds):
        gc.collect()  # not in the middle of a call
        for name in names if i % 2 == 0 else reversed(names):
            for _ in range((repeats or {}).get(name, 1)):
                seconds[name].append(_seconds(actions[name], device))
        if progress is not None:
            progress(i + 1, rounds)
    return seconds


def _seconds(action: Action, device: torch.device | None) -> float:
    cuda = device is not None and device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    action()
    if cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def in_units(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """From the results of :func:`compare`, the median milliseconds of a call, and its megabytes at the peak."""
    return {
        "ms": {name: milliseconds(seconds) for name, seconds in found["seconds"].items()},
        "mb": {name: n_bytes / 1e6 for name, n_bytes in found["peak_bytes"].items()},
    }


def milliseconds(seconds: list[float]) -> float:
    """Their median, in milliseconds."""
    return 1e3 * statistics.median(seconds)


def compare(
    actions: Mapping[str, Action],
    rounds: int,
    device: torch.device,
    reporter: Reporter,
    *,
    repeats: Mapping[str, int] | None = None,
    memory_of: Mapping[str, Action] | None = None,
) -> dict[str, dict[str, Any]]:
    """Seconds of each call in this many rounds, as :func:`time_side_by_side`, and the bytes at the peak of one call.

    memory_of: of which the bytes are measured; None: of all
    """
    measured = actions if memory_of is None else memory_of
    total, memory = rounds + len(measured), {}
    for i, (name, action) in enumerate(measured.items()):
        memory[name] = peak_bytes(action, device)
        reporter.progress((i + 1) / total, {})

    def told(done: int, _: int) -> None:
        reporter.progress((done + len(measured)) / total, {})

    seconds = time_side_by_side(actions, rounds, repeats=repeats, device=device, progress=told)
    return {"seconds": seconds, "peak_bytes": memory}


def peak_bytes(action: Action, device: torch.device | None = None) -> int:
    """The most bytes that were allocated at one time during ``action()``, above what was there before.

    On the CPU PyTorch's profiler reports every block that PyTorch's allocator hands out and takes back, so temporaries
    inside operators count, those of the backward pass too. Not counted: memory that a library takes by itself (the
    scratch space of a BLAS or FFT), and blocks of other threads than the caller's and autograd's. On CUDA it is the
    caching allocator's own count.

    >>> peak_bytes(lambda: torch.empty(1000).fill_(1))
    4000
    """
    gc.collect()
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        action()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it tells standard error that it begins and ends
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8", "replace"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["args"]["Ev Idx"])
    current, peak, ours = 0, 0, set()
    for event in changes:
        n_bytes, address = event["args"]["Bytes"], event["args"]["Addr"]
        if n_bytes > 0:
            ours.add(address)
        elif address in ours:
            ours.remove(address)
        else:
            continue  # a block from before, given back: what was there before is not counted, nor that it is gone
        current += n_bytes
        peak = max(peak, current)
    return peak


def n_parameters(config: ModelConfig) -> int:
    """Counts the parameters of its model, which is built without memory. A tied one counts once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())
