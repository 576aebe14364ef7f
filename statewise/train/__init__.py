"""Training: configuration, loop, and the run folder that it leaves."""

from statewise.train.config import RunConfig, TrainConfig
from statewise.train.loop import TrainResult, train
from statewise.train.metrics import read_metrics
from statewise.train.report import JsonReporter, Reporter, TerminalReporter, make_reporter
from statewise.train.run_folder import read_run, run_from_dict

__all__ = [
    "JsonReporter",
    "Reporter",
    "RunConfig",
    "TerminalReporter",
    "TrainConfig",
    "TrainResult",
    "make_reporter",
    "read_metrics",
    "read_run",
    "run_from_dict",
    "train",
]
