"""Training: configuration, tasks, loop, and the run folder that it leaves."""

from statewise.train.config import (
    BudgetConfig,
    OptimizerConfig,
    ParallelConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.train.loop import TrainResult, train
from statewise.train.metrics import read_metrics
from statewise.train.report import JsonReporter, Reporter, TerminalReporter, make_reporter
from statewise.train.run_folder import read_run, run_from_dict
from statewise.train.tasks import TASKS, BatchSource, Table, Task, open_task

__all__ = [
    "TASKS",
    "BatchSource",
    "BudgetConfig",
    "JsonReporter",
    "OptimizerConfig",
    "ParallelConfig",
    "Reporter",
    "ReportingConfig",
    "RunConfig",
    "ScheduleConfig",
    "Table",
    "Task",
    "TerminalReporter",
    "TrainConfig",
    "TrainResult",
    "make_reporter",
    "open_task",
    "read_metrics",
    "read_run",
    "run_from_dict",
    "train",
]
