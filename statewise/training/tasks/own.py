"""Your own tasks, by name: what ``RunConfig.task`` may say, and ``run.json`` remembers."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from statewise.configuration.words import suggest
from statewise.errors import ConfigError
from statewise.training.tasks.base import Task

OWN: dict[str, type[Task[Any, Any]]] = {}

TaskType = TypeVar("TaskType", bound=type[Task[Any, Any]])


def register_task(task: TaskType) -> TaskType:
    """Makes a child of :class:`~statewise.training.Task` known by its name; use it as a decorator.

    A run with it, ``sw.train(..., task=MyTask)`` or ``RunConfig(..., task="MyTask")``, names it in its ``run.json``. If
    the class is not registered, the run is refused, rather than trained by another loss.

    Errors:  ConfigError unless it is such a class with all methods; and if another class already has its name.
    """
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(f"register_task takes a child of Task, or of a task such as ClassificationTask; got {task!r}")
    if inspect.isabstract(task):
        missing = ", ".join(sorted(task.__abstractmethods__))
        raise ConfigError(f"{task.__name__} lacks {missing}; write them, or derive from a task that has them")
    before = OWN.get(task.__name__)
    if before is not None and (before.__module__, before.__qualname__) != (task.__module__, task.__qualname__):
        raise ConfigError(
            f"a task called {task.__name__} is registered already, from {before.__module__}; give this one another name"
        )
    OWN[task.__name__] = task  # a cell of a notebook that is run again defines it again
    return task


def own_task(name: str) -> type[Task[Any, Any]]:
    """The registered task of this name. Errors: ConfigError if there is none."""
    if name not in OWN:
        known = f"; {suggest(name, list(OWN), 'Registered')}" if OWN else ""
        raise ConfigError(
            f"task={name!r} is not registered here; import the file that defines it, with @register_task{known}"
        )
    return OWN[name]
