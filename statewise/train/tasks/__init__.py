"""Tasks: what a model is trained for. The class of the data's config decides."""

from statewise.train.tasks.base import BatchSource, Table, Task

__all__ = ["BatchSource", "Table", "Task"]
