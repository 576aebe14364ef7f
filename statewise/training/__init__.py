"""Training: configuration, tasks, loop, and the run folder that it leaves."""

from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ParallelConfig,
    ReportingConfig,
    RoutingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.loop import TrainResult, train_run
from statewise.training.metrics import read_metrics
from statewise.training.plotting import plot_runs as plot_runs
from statewise.training.report import JsonReporter, Reporter, Reporters, TerminalReporter, make_reporter
from statewise.training.run_folder import read_run, run_from_dict
from statewise.training.tasks import TASKS, BatchSource, Table, Task, open_task, register_task

__all__ = [
    "TASKS",
    "BatchSource",
    "BudgetConfig",
    "JsonReporter",
    "OptimizerConfig",
    "ParallelConfig",
    "Reporter",
    "Reporters",
    "ReportingConfig",
    "RoutingConfig",
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
    "register_task",
    "run_from_dict",
    "train_run",
]
