"""What the settings of claims have in common: fields that say what they take, checked when they are made.

A field is declared with one of these functions in the place of its default, which is their first argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from statewise.configuration import Config
from statewise.data.base import absolute
from statewise.errors import ConfigError
from statewise.train.environment import choose_device

CHECK = "check"  # in a field's metadata: what says of a value how it is wrong
BEFORE = "before"  # likewise: what held in folders from before there was the field, where that is not its default


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """Checks its fields one by one, then in ``check`` what they are together.

    Errors:  ConfigError that names the class, the field and what it takes.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            wrong = each.metadata[CHECK](value) if CHECK in each.metadata else None
            if wrong:
                raise ConfigError(f"{type(self).__name__}.{each.name}={value!r}{wrong}")
        if getattr(self, "folder", None) is not None:
            object.__setattr__(self, "folder", absolute(self.folder))  # type: ignore[attr-defined]
        if hasattr(self, "device"):
            choose_device(self.device)  # refuses what is not there before the folder is made
        self.check()

    def check(self) -> None:
        """Refuses what no trial could have."""

    def require(self, holds: bool, text: str) -> None:
        """Errors:  ConfigError with this text unless it holds."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {text}")


def checked(default: Any, wrong: Callable[[Any], str | None], **metadata: Any) -> Any:
    """wrong: says of a value what is wrong with it, behind "field=value"."""
    return field(default=default, metadata={CHECK: wrong, **metadata})


def once(default: tuple[Any, ...], known: Iterable[Any] | None = None) -> Any:
    """A tuple with at least one, each once, all of them known ones."""
    names = None if known is None else tuple(known)

    def wrong(given: tuple[Any, ...]) -> str | None:
        unknown = [one for one in given if names is not None and one not in names]
        if unknown or not given or len(set(given)) < len(given):
            which = f": {unknown[0]!r} is unknown" if unknown else ""
            return f"{which}; use some of {', '.join(names)}, each once" if names else "; give at least one, each once"
        return None

    return checked(default, wrong)


def one_of(default: str, known: Iterable[str], **metadata: Any) -> Any:
    names = tuple(known)
    return checked(
        default, lambda given: None if given in names else f" is unknown; use one of {', '.join(names)}", **metadata
    )


def least(default: Any, low: int = 1) -> Any:
    """A number, or a tuple with at least one, none of them below ``low``; None if that is its type."""

    def wrong(given: Any) -> str | None:
        numbers = given if isinstance(given, tuple) else (given,)
        small = not numbers or any(number is not None and not number >= low for number in numbers)
        return f" is too small; use at least {low}" if small else None

    return checked(default, wrong)


def even(default: Any) -> Any:
    """A number, or a tuple with at least one, all even and at least 2."""

    def wrong(given: Any) -> str | None:
        numbers = given if isinstance(given, tuple) else (given,)
        return None if numbers and all(n >= 2 and n % 2 == 0 for n in numbers) else "; use even numbers of at least 2"

    return checked(default, wrong)


def positive(default: float | None, **metadata: Any) -> Any:
    right = lambda given: given is None or 0 < given < math.inf  # noqa: E731
    return checked(default, lambda given: None if right(given) else "; expected a number above 0", **metadata)


def share(default: float | None) -> Any:
    right = lambda given: given is None or 0 < given <= 1  # noqa: E731
    return checked(default, lambda given: None if right(given) else "; use a share above 0, at most 1")


def rates(default: tuple[float, ...]) -> Any:
    """Learning rates with different names, since the parts of two with one name would be the same files."""

    def wrong(given: tuple[float, ...]) -> str | None:
        names = [rate_name(rate) for rate in given]
        apart = names and len(set(names)) == len(names)
        return None if apart else "; give at least one rate, each once and apart in its first six digits"

    return checked(default, wrong)


def rate_name(rate: float) -> str:
    """As parts, folders and tables have it, in six digits.

    >>> rate_name(2e-3)
    '0.002'
    """
    return f"{rate:g}"
