"""What `statewise benchmark` and `statewise profile` do: threads, progress on standard error."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from statewise.benchmark.bars import run_bars
from statewise.benchmark.ceilings import SECONDS, keep, kept, measure_ceilings
from statewise.benchmark.errors import measure_errors
from statewise.benchmark.plot import plot_cost, require_cost_plot
from statewise.benchmark.processor import describe_here
from statewise.benchmark.profile import STEPS, profile_model
from statewise.benchmark.promises import all_bars
from statewise.benchmark.run import find_workload, run_workload
from statewise.benchmark.workloads.models import PRESET_NAMES, VOCABULARY
from statewise.errors import ConfigError, DataError
from statewise.models.language_model import LanguageModel
from statewise.models.presets import PRESETS
from statewise.training.environment import require_threads


def run_bars_here(*, quick: bool, seconds: float, threads: int | None) -> list[dict[str, Any]]:
    """One record for each bar, which names its ``processor``, as somebody may put those of several into one table.

    Errors: ConfigError for seconds that are negative or not finite.
    """
    _require_seconds(seconds)
    _set_threads(threads)
    here = {"processor": describe_here()}
    known = None if quick else kept()
    if known is None and not quick:
        known = _measured_and_kept(progress=_progress())
    ceilings = [] if known is None else known["ceilings"]
    records = run_bars(all_bars(), quick=quick, seconds=seconds, progress=_progress(), ceilings=ceilings)
    return [record | here for record in records]


def ceilings_here(*, quick: bool, seconds: float, threads: int | None) -> dict[str, Any]:
    """Keeps what was measured, unless it was in less than the usual time: that may not replace a better record.

    Errors: ConfigError for seconds that are negative or not finite.
    """
    _require_seconds(seconds)
    _set_threads(threads)
    if quick:
        return measure_ceilings(quick=True, progress=_progress())
    if seconds < SECONDS:
        record = measure_ceilings(seconds=seconds, progress=_progress())
        print(
            f"statewise: these ceilings are not kept: --seconds {seconds:g} is too short to trust them; "
            f"give {SECONDS:g} or more to keep them",
            file=sys.stderr,
        )
        return record
    return _measured_and_kept(seconds=seconds, progress=_progress())


def errors_here(*, quick: bool, threads: int | None) -> dict[str, Any]:
    _set_threads(threads)
    return measure_errors(quick=quick, progress=_progress())


def _measured_and_kept(**options: Any) -> dict[str, Any]:
    record = measure_ceilings(**options)
    try:
        keep(record)
    except DataError as error:  # what was measured is still told
        print(f"statewise: {error}", file=sys.stderr)
    return record


def run_workload_here(
    name: str, *, quick: bool, seconds: float, threads: int | None, memory: bool, plot: Path | None
) -> dict[str, Any]:
    """Before anything runs, ConfigError for a name, seconds or a plot that cannot be, InputError without matplotlib."""
    workload = find_workload(name)
    _require_seconds(seconds)
    if plot is not None:
        require_cost_plot(workload, plot, quick=quick)
    _set_threads(threads)
    record = run_workload(workload, quick=quick, seconds=seconds, memory=memory, progress=_progress())
    if plot is not None:
        plot_cost(record, plot)
    return record


def profile_here(
    model: LanguageModel, *, steps: Sequence[str], batch_size: int, length: int, threads: int | None
) -> dict[str, Any]:
    """Errors: ConfigError for a kind of step there is not."""
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        raise ConfigError(f"--step {unknown[0]!r} is unknown; use {', '.join(STEPS)}")
    _set_threads(threads)
    return profile_model(model, steps=steps or STEPS, batch=batch_size, length=length)


def preset_model(name: str) -> LanguageModel | None:
    """A preset of models with random weights, of the vocabulary that it was published with; None for a folder's name.

    Errors: ConfigError for what is neither.
    """
    if name not in PRESETS:
        if not Path(name).exists():
            raise ConfigError(
                f"{name!r} is neither a run folder nor a preset of a language model; "
                f"name a run folder or one of {', '.join(PRESETS)}"
            )
        return None
    torch.manual_seed(0)
    return PRESETS[name](VOCABULARY if name in PRESET_NAMES else 257).build()


def _require_seconds(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"--seconds {seconds} is not a valid duration; give 0 or more, such as 2")


def _set_threads(threads: int | None) -> None:
    require_threads("--threads ", threads)
    if threads is not None:
        torch.set_num_threads(threads)


def _progress() -> Callable[[str], None]:
    begun = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {line}", file=sys.stderr, flush=True)

    return tell
