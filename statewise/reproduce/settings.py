"""What the settings of claims have in common. They are configs, whose fields say by their types what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import Condition, Distinct, Positive
from statewise.data.base import absolute
from statewise.errors import ConfigError
from statewise.training.environment import choose_device

BEFORE = "before"  # in a field's metadata: what held before there was the field, where that is not its default


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """A ``folder`` is held as a whole path; a ``device`` that is not there is refused. Then ``check`` has its say.

    Errors:  ConfigError that names the class and the field.
    """

    def __post_init__(self) -> None:
        if getattr(self, "folder", None) is not None:
            object.__setattr__(self, "folder", absolute(self.folder))  # type: ignore[attr-defined]
        if hasattr(self, "device"):
            choose_device(self.device)  # refuses what is not there before the folder is made
        self.check()

    def check(self) -> None:
        """Refuses what no trial could have, by rules between fields."""

    def require(self, holds: bool, text: str) -> None:
        """Errors:  ConfigError with this text unless it holds."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {text}")

    def require_as_many(self, *names: str) -> None:
        """Requires fields that hold tuples to have as many items: an item of each belongs to one of the others."""
        given = {name: getattr(self, name) for name in names}
        text = ", ".join(f"{name}={value}" for name, value in given.items())
        self.require(len(set(map(len, given.values()))) == 1, f"{text} differ in length; give as many of each")


def rate_name(rate: float) -> str:
    """As parts, folders and tables have it, in six digits.

    >>> rate_name(2e-3)
    '0.002'
    """
    return f"{rate:g}"


APART = Condition(
    lambda rates: len(set(map(rate_name, rates))) == len(rates),
    ", apart in their first six digits",
    "has two with one name, so that their parts would be the same files",
)
Rates = Annotated[Distinct[Positive], APART]  # of learning
