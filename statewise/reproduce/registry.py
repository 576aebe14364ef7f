"""Which reproductions there are, and how one is run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statewise.configuration import assign
from statewise.errors import ConfigError, DataError
from statewise.reproduce.progress import Watcher
from statewise.reproduce.report import Report, write_report
from statewise.reproduce.stopping import Stopped, stopping_at_signals
from statewise.reproduce.work import Work, open_work


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A published claim, measured here.

    summary: one line           duration: of the full setting, about
    full:    its settings, a frozen dataclass      quick: the same made small, a look of under a minute, without bars
    run:     measures part by part, as ``Work`` keeps them, and gives the report
    """

    summary: str
    duration: str
    full: Callable[[], Any]
    quick: Callable[[], Any]
    run: Callable[[Any, Work], Report]


# The module that holds each, as REPRODUCTION or in a dictionary REPRODUCTIONS.
PLACES = {
    "hippo": "hippo_reconstruction",
    "delay": "long_delay",
    "lssl-vs-s4": "lssl_vs_s4",
    "s4-vs-transformer": "s4_vs_transformer",
    "flashconv": "flashconv",
    "digits": "trained_task",
    "acsf1": "trained_task",
    "spoken-digits": "trained_task",
    "fashion-mnist": "trained_task",
    "co2": "trained_task",
    "h3-synthetics": "h3_synthetics.experiment",
    "mqar": "mqar.experiment",
    "lra": "lra.experiment",
    "h3-at-work": "h3_at_work.experiment",
    "h3-language": "h3_language.experiment",
    "h3-throughput": "h3_throughput.experiment",
    "induction-heads": "induction_heads.experiment",
    "selective-copying": "selective_copying.experiment",
    "typeseg": "typeseg.experiment",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended: ``report`` and ``record`` (what result.json holds), or None if ``signal`` stopped it."""

    folder: Path
    report: Report | None
    record: dict[str, Any] | None
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0, or as a shell has it for a signal: 128 plus its number. A bar that is missed is a result, no error."""
        return 0 if self.signal is None else 128 + self.signal


def listed() -> list[tuple[str, str, str]]:
    """Name, summary and duration of each."""
    return [(name, find(name).summary, find(name).duration) for name in PLACES]


def find(name: str) -> Reproduction:
    """Errors: ConfigError for an unknown name."""
    if name not in PLACES:
        raise ConfigError(f"there is no reproduction {name!r}; there are {', '.join(PLACES)}")
    module = import_module(f"statewise.reproduce.{PLACES[name]}")
    found = getattr(module, "REPRODUCTION", None) or module.REPRODUCTIONS[name]
    assert isinstance(found, Reproduction)
    return found


def settings(name: str, *, quick: bool = False, assignments: Sequence[str] = ()) -> Any:
    """The settings of a reproduction, some of them set as in ``rounds=3``.

    Errors: ConfigError for an unknown name or field.
    """
    found = find(name)
    return assign(found.quick() if quick else found.full(), assignments)


def reproduce(
    name: str,
    folder: Path | str,
    config: Any = None,
    *,
    plots: bool = True,
    watcher: Watcher | None = None,
) -> Outcome:
    """Measures what the reproduction ``name`` is about, and leaves result.json, report.md and plots in ``folder``.

    config: its settings, from :func:`settings`; None: the full ones. A folder that holds a part of the same work is
    gone on with: what is done is not done again. Ctrl-C and SIGTERM end it, and keep what is done.

    Errors: ConfigError, CheckpointError for a folder with something else in it, DataError for what is not installed:
            all before anything is measured. Of a training run within it, TrainingError.
    """
    found = find(name)
    config = found.full() if config is None else config
    if not isinstance(config, type(found.full())):
        raise ConfigError(f"{name} needs a {type(found.full()).__name__}, got a {type(config).__name__}")
    if plots and find_spec("matplotlib") is None:
        raise DataError(
            'the plots need matplotlib, which is not installed; run: pip install "statewise[plot]", or use --no-plots'
        )
    watcher = Watcher() if watcher is None else watcher
    work = open_work(folder, name, config, watcher)
    try:
        with stopping_at_signals():
            report = found.run(config, work)
    except Stopped as stopped:
        message = f"stopped by {signal.Signals(stopped.signal).name}; the same command goes on from here"
        watcher.event({"kind": "stop", "folder": str(work.folder), "message": message})
        return Outcome(folder=work.folder, report=None, record=None, signal=stopped.signal)
    finally:
        watcher.close()
    record = write_report(report, work, plots=plots)
    return Outcome(folder=work.folder, report=report, record=record)
