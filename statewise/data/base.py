"""What every description of data is."""

from __future__ import annotations

import abc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from statewise.configuration import Config

Data = TypeVar("Data", bound="DataConfig")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Which data, and how they are divided. Its class decides the task (``statewise.training.tasks.TASKS``).

    If there is a choice of data, its field is ``source`` (the flag --data). The folder with their files is ``folder``
    (the flag --data-dir).
    """

    default_length: ClassVar[int | None] = None  # of ``train.length``; None: the sequences have their own length

    @abc.abstractmethod
    def with_absolute_paths(self: Data) -> Data:
        """The same data, found from any working directory, since you may resume or evaluate a run from another one."""


def absolute(path: str) -> str:
    """The path with ~ written out, from the root.

    >>> absolute("/data/../data")
    '/data/../data'
    """
    return str(Path(os.path.expanduser(path)).absolute())
