"""What a claim is, which ones there are, and the one way in which each is measured."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from statewise.configuration import assign
from statewise.errors import ConfigError, DataError, package_folder
from statewise.reproduce.progress import Watcher
from statewise.reproduce.report import Report, write_report
from statewise.reproduce.work import Job, Work, open_work
from statewise.training.signals import Stopped, stopping_at_signals

Found = dict[str, dict[str, Any]]  # what each trial gave, by its name


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published claim, measured here.

    summary:  one line          duration: of the full setting, about
    source:   where what it is held against was published; "" where nothing was
    settings: the full ones, a frozen dataclass      quick: what is set for a look of under a minute, as by ``--set``
    trials:   by name, each a job that another process can do; they continue where they were stopped
    measure:  instead of ``trials``, if the results of some trials decide which others there are
    report:   the results of the trials, as tables, bars, plots and figures
    """

    summary: str
    duration: str
    settings: Callable[[], Any]
    quick: str
    report: Callable[[Any, Any], Report]
    source: str = ""
    trials: Callable[[Any, Work], Mapping[str, Job]] | None = None
    measure: Callable[[Any, Work], Any] | None = None

    def full(self) -> Any:
        return self.settings()

    def small(self) -> Any:
        """What a quick look measures: small sizes, no bars."""
        return assign(self.settings(), self.quick.split())

    def run(self, config: Any, work: Work) -> Report:
        """The trials that the folder does not hold yet, and the report of all."""
        if self.measure is not None:
            return self.report(config, self.measure(config, work))
        assert self.trials is not None  # one of the two is there
        jobs = self.trials(config, work)
        work.begin(len(jobs))
        return self.report(config, work.parts(jobs))


# The module that holds each, as CLAIM or in a dictionary CLAIMS.
PLACES = {
    "hippo": "hippo_reconstruction",
    "delay": "long_delay",
    "lssl-vs-s4": "lssl_vs_s4",
    "s4-vs-transformer": "s4_vs_transformer",
    "s4-filter": "s4_filter",
    "flashconv": "flashconv",
    **dict.fromkeys(("digits", "acsf1", "spoken-digits", "fashion-mnist", "co2"), "trained_task"),
    "baselines": "baselines",
    "sampling": "sampling",
    "h3-synthetics": "h3_synthetics",
    "mqar": "mqar",
    "lra": "lra.claim",
    "h3-at-work": "h3_at_work.claim",
    "h3-language": "h3_language.claim",
    "attention-place": "attention_place",
    "h3-throughput": "h3_throughput",
    "induction-heads": "induction_heads",
    "selective-copying": "selective_copying",
    "typeseg": "typeseg",
    "kalman": "kalman.claim",
    "kalman-missing": "kalman_missing",
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


def find(name: str) -> Claim:
    """Errors: ConfigError for an unknown name."""
    if name not in PLACES:
        raise ConfigError(f"there is no reproduction {name!r}; use one of {', '.join(PLACES)}")
    module = import_module(f"statewise.reproduce.{PLACES[name]}")
    found = getattr(module, "CLAIM", None) or module.CLAIMS[name]
    assert isinstance(found, Claim)
    return found


def settings(name: str, *, quick: bool = False, assignments: Sequence[str] = ()) -> Any:
    """The settings of a claim, with ``assignments`` such as ``rounds=3``.

    Errors: ConfigError for an unknown name or field.
    """
    found = find(name)
    return assign(found.small() if quick else found.full(), assignments)


def reproduce(
    name: str, folder: Path | str, config: Any = None, *, plots: bool = True, watcher: Watcher | None = None
) -> Outcome:
    """Measures the claim ``name``, and writes result.json, report.md and plots into ``folder``.

    config: its settings, from :func:`settings`; None: the full ones. If the folder has a part of the same work, it
            continues: finished parts are not done again. Ctrl-C and SIGTERM end it and keep what is done.

    Errors: ConfigError, CheckpointError for a folder with something else in it, DataError for a missing package;
            all before anything is measured. TrainingError from a training run inside it.
    """
    claim = find(name)
    config = claim.full() if config is None else config
    if not isinstance(config, type(claim.full())):
        raise ConfigError(f"{name} needs a {type(claim.full()).__name__}, got a {type(config).__name__}")
    if plots:
        package_folder("matplotlib", "plot", "the plots, which --no-plots leaves out, need", DataError)
    watcher = Watcher() if watcher is None else watcher
    work = open_work(folder, name, config, watcher)
    try:
        with stopping_at_signals():
            report = claim.run(config, work)
    except Stopped as stopped:
        message = f"stopped by {signal.Signals(stopped.signal).name}; the same command continues from here"
        watcher.event({"kind": "stop", "folder": str(work.folder), "message": message})
        return Outcome(folder=work.folder, report=None, record=None, signal=stopped.signal)
    finally:
        watcher.close()
    record = write_report(report, work, source=claim.source, plots=plots)
    return Outcome(folder=work.folder, report=report, record=record)
