"""Tasks: what a model is trained for. The classes of the data's and the model's config decide.

For your own data, add a line before a run is read, ``TASKS[MyDataConfig] = (MyTask,)``; for your own model, add its
config to ``statewise.models.registry.CONFIG_TYPES``. For your own loss on our data and models, register a task by name
(:func:`register_task`), and the run says which.
"""

from __future__ import annotations

from typing import Any

from statewise.data.base import DataConfig
from statewise.data.labelled import LabelledDataConfig
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.long_range import LongRangeDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.data.synthetic_languages import LANGUAGES
from statewise.data.text import TextDataConfig
from statewise.errors import ConfigError
from statewise.models.base import ModelConfig
from statewise.models.registry import CONFIG_TYPES
from statewise.training.config import RunConfig
from statewise.training.tasks.base import BatchSource, Table, Task
from statewise.training.tasks.classification import ClassificationTask
from statewise.training.tasks.forecasting import ForecastingTask
from statewise.training.tasks.language import LanguageTask
from statewise.training.tasks.own import own_task, register_task
from statewise.training.tasks.pairs import PairClassificationTask
from statewise.training.tasks.recall import RecallTask
from statewise.training.tasks.regression import RegressionTask
from statewise.training.tasks.structural import StructuralTask

__all__ = ["TASKS", "BatchSource", "Table", "Task", "open_task", "register_task", "run_types", "task_type"]

# A new kind of data, with what is learned from it, is one line here. Where there are several tasks the model decides.
TASKS: dict[type[DataConfig], tuple[type[Task[Any, Any]], ...]] = {
    LabelledDataConfig: (ClassificationTask, RegressionTask),
    LabelledTextDataConfig: (ClassificationTask, RegressionTask),
    LongRangeDataConfig: (ClassificationTask, PairClassificationTask),
    MemoryDataConfig: (ClassificationTask, RegressionTask),
    SeriesDataConfig: (ForecastingTask, StructuralTask),
    **dict.fromkeys(LANGUAGES.values(), (RecallTask,)),
    TextDataConfig: (LanguageTask,),
}


def task_type(run: RunConfig) -> type[Task[Any, Any]]:
    """The task for the data and the model of a run, or the one that it names.

    Errors: ConfigError if nothing is registered for the class of the data, or nothing that trains such a model, or
            under that name.
    """
    data, model = type(run.data), type(run.model)
    if run.task is not None:
        return _named(run.task, data, model)
    if data not in TASKS:
        known = ", ".join(sorted(cls.__name__ for cls in TASKS))
        raise ConfigError(f"data is a {data.__name__}, which has no task; use one of {known}")
    for task in TASKS[data]:
        if issubclass(model, task.models):
            return task
    expected = " or ".join(cls.__name__ for task in TASKS[data] for cls in task.models)
    raise ConfigError(f"model is a {model.__name__}, but {data.__name__} needs a {expected}; change model or data")


def _named(name: str, data: type[DataConfig], model: type[ModelConfig]) -> type[Task[Any, Any]]:
    own = own_task(name)
    if not issubclass(model, own.models):
        expected = " or ".join(cls.__name__ for cls in own.models)
        raise ConfigError(f"model is a {model.__name__}, but {name} needs a {expected}; change model or task")
    readable = [cls for cls, tasks in TASKS.items() if any(issubclass(own, task) for task in tasks)]
    if readable and data not in readable:  # a task that derives from none of ours opens its data itself
        expected = " or ".join(cls.__name__ for cls in readable)
        raise ConfigError(f"data is a {data.__name__}, but {name} needs a {expected}; change data or task")
    return own


def open_task(run: RunConfig) -> Task[Any, Any]:
    """The data of a run, opened, and what is learned from them.

    Errors: DataError, ConfigError.
    """
    return task_type(run)(run)


def run_types() -> dict[str, type]:
    """The classes that a "type" key in the JSON of a run may name."""
    return {**CONFIG_TYPES, **{cls.__name__: cls for cls in TASKS}}
