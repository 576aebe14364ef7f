"""Tasks: what a model is trained for. The class of the data's config decides.

Who has data of their own adds a line before a run is read, ``TASKS[MyDataConfig] = MyTask``, and for a model of their
own one to ``statewise.models.registry.CONFIG_TYPES``.
"""

from __future__ import annotations

from typing import Any

from statewise.data.base import DataConfig
from statewise.data.labelled import LabelledDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.data.text import TextDataConfig
from statewise.errors import ConfigError
from statewise.models.registry import CONFIG_TYPES
from statewise.train.config import RunConfig
from statewise.train.tasks.base import BatchSource, Table, Task
from statewise.train.tasks.forecasting import ForecastingTask
from statewise.train.tasks.language import LanguageTask
from statewise.train.tasks.sequences import SequenceTask

__all__ = ["TASKS", "BatchSource", "Table", "Task", "open_task", "run_types", "task_type"]

# A new kind of data, with what is learned from it, is one line here.
TASKS: dict[type[DataConfig], type[Task[Any, Any]]] = {
    LabelledDataConfig: SequenceTask,  # type: ignore[type-abstract]  # when made, it is one of two concrete ones
    MemoryDataConfig: SequenceTask,  # type: ignore[type-abstract]
    SeriesDataConfig: ForecastingTask,
    TextDataConfig: LanguageTask,
}


def task_type(data: DataConfig) -> type[Task[Any, Any]]:
    """The task for these data.

    Errors: ConfigError if nothing is registered for their class.
    """
    if type(data) not in TASKS:
        known = ", ".join(sorted(cls.__name__ for cls in TASKS))
        raise ConfigError(f"data is a {type(data).__name__}, for which there is no task; there is one for {known}")
    return TASKS[type(data)]


def open_task(run: RunConfig) -> Task[Any, Any]:
    """The data of a run, opened, and what is learned from them.

    Errors: DataError, ConfigError.
    """
    return task_type(run.data)(run)


def run_types() -> dict[str, type]:
    """The classes that a "type" key in the JSON of a run may name."""
    return {**CONFIG_TYPES, **{cls.__name__: cls for cls in TASKS}}
