"""Tasks: what a model is trained for. The classes of the data's and the model's config decide.

Who has data of their own adds a line before a run is read, ``TASKS[MyDataConfig] = (MyTask,)``, and for a model of
their own one to ``statewise.models.registry.CONFIG_TYPES``.
"""

from __future__ import annotations

from typing import Any

from statewise.data.base import DataConfig
from statewise.data.labelled import LabelledDataConfig
from statewise.data.long_range import LongRangeDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.data.synthetic_languages import LANGUAGES
from statewise.data.text import TextDataConfig
from statewise.errors import ConfigError
from statewise.models.registry import CONFIG_TYPES
from statewise.train.config import RunConfig
from statewise.train.tasks.base import BatchSource, Table, Task
from statewise.train.tasks.classification import ClassificationTask
from statewise.train.tasks.forecasting import ForecastingTask
from statewise.train.tasks.language import LanguageTask
from statewise.train.tasks.pairs import PairClassificationTask
from statewise.train.tasks.recall import RecallTask
from statewise.train.tasks.regression import RegressionTask
from statewise.train.tasks.structural import StructuralTask

__all__ = ["TASKS", "BatchSource", "Table", "Task", "open_task", "run_types", "task_type"]

# A new kind of data, with what is learned from it, is one line here. Where there are several tasks the model decides.
TASKS: dict[type[DataConfig], tuple[type[Task[Any, Any]], ...]] = {
    LabelledDataConfig: (ClassificationTask, RegressionTask),
    LongRangeDataConfig: (ClassificationTask, PairClassificationTask),
    MemoryDataConfig: (ClassificationTask, RegressionTask),
    SeriesDataConfig: (ForecastingTask, StructuralTask),
    **dict.fromkeys(LANGUAGES.values(), (RecallTask,)),
    TextDataConfig: (LanguageTask,),
}


def task_type(run: RunConfig) -> type[Task[Any, Any]]:
    """The task for the data and the model of a run.

    Errors: ConfigError if nothing is registered for the class of the data, or nothing that trains such a model.
    """
    data, model = type(run.data), type(run.model)
    if data not in TASKS:
        known = ", ".join(sorted(cls.__name__ for cls in TASKS))
        raise ConfigError(f"data is a {data.__name__}, for which there is no task; there is one for {known}")
    for task in TASKS[data]:
        if issubclass(model, task.models):
            return task
    expected = " or ".join(cls.__name__ for task in TASKS[data] for cls in task.models)
    raise ConfigError(f"model is a {model.__name__}, but {data.__name__} needs a {expected}; change model or data")


def open_task(run: RunConfig) -> Task[Any, Any]:
    """The data of a run, opened, and what is learned from them.

    Errors: DataError, ConfigError.
    """
    return task_type(run)(run)


def run_types() -> dict[str, type]:
    """The classes that a "type" key in the JSON of a run may name."""
    return {**CONFIG_TYPES, **{cls.__name__: cls for cls in TASKS}}
