"""The errors that Statewise raises at its boundaries.

Each carries one line that names what was given, what was expected and what to do.
The command line prints that line and exits with 2 (1 where a run cannot go on: TrainingError).
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice


class StatewiseError(Exception):
    """Base of all errors that are meant to be read by a user; ``exit_code`` is what the command line returns."""

    exit_code = 2


class InputError(StatewiseError, ValueError):
    """A tensor argument has the wrong shape, dtype or value."""


class NotFiniteError(InputError):
    """The predictions of a model are not finite: it has diverged."""


class ConfigError(StatewiseError, ValueError):
    """A configuration has an unknown field, a wrong type, or values that contradict each other."""


class DataError(StatewiseError, ValueError):
    """A text, a folder or a tokenizer cannot be used."""


class CheckpointError(StatewiseError, ValueError):
    """A checkpoint or run folder is missing, damaged, of another architecture, or already in use."""


class TrainingError(StatewiseError, RuntimeError):
    """A run cannot go on."""

    exit_code = 1


class DivergedError(TrainingError):
    """Numbers of a run are not finite any more. ``what`` says which, without what remains of the run and what to do."""

    def __init__(self, message: str, what: str | None = None) -> None:
        super().__init__(message)
        self.what = message if what is None else what


# -- errors of one kind told as another ------------------------------------------------------------------------------


@contextmanager
def retold(as_: type[StatewiseError], *of: type[StatewiseError], where: str = "") -> Iterator[None]:
    """Errors of the kinds ``of`` that are raised within, as one of the kind ``as_`` that says the same."""
    try:
        yield
    except of as error:
        raise as_(f"{where}{error}") from error


@contextmanager
def reading(path: object, as_: type[StatewiseError] = DataError) -> Iterator[None]:
    """What the system says within it of a file that cannot be read, as one line."""
    try:
        yield
    except OSError as error:
        raise as_(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def importing(package: str, extra: str, purpose: str, as_: type[StatewiseError] = InputError) -> Iterator[None]:
    """An ImportError within it as one line: that ``package`` is not installed, that a file of the user's own has its
    name, or why it cannot be imported. ``purpose``: "a plot needs".
    """
    try:
        yield
    except ImportError as error:
        remedy = f'pip install "statewise[{extra}]"'
        hiding = _hiding(package.split(".")[0])
        if hiding is not None:
            why = f"{package}, but {hiding} is found in its place; rename that file"
        elif isinstance(error, ModuleNotFoundError) and error.name == package.split(".")[0]:
            why = f"{package}, which is not installed; {remedy}"
        else:
            why = f"{package}, which cannot be imported here ({reason(error)}); {remedy}"
        raise as_(f"{purpose} {why}") from error


def _hiding(package: str) -> str | None:
    """A file beside the program, or in the working directory, that Python takes for the package."""
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    for folder in {os.getcwd(), os.path.dirname(os.path.abspath(program))} & {os.path.abspath(p) for p in sys.path}:
        for name in (f"{package}.py", os.path.join(package, "__init__.py")):
            if os.path.isfile(path := os.path.join(folder, name)):
                return path
    return None


# -- numbers -----------------------------------------------------------------------------------------------------------


def require_least(as_: type[StatewiseError], **given: tuple[float | None, float]) -> None:
    """An error of the kind ``as_`` for the first number below the least that it may be: name=(number, least)."""
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise as_(f"{name}={value} is out of range; use at least {least}")


# -- what others wrote, in a message ---------------------------------------------------------------------------------


class _Short(reprlib.Repr):
    """Of what is nested deep or long only the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxtuple, self.maxstring, self.maxlong = 4, 12, 12, 12, 80, 80


def excerpt(text: object, longest: int = 80, *, quoted: bool = True) -> str:
    """Text of a file, or another value of it, for a message of one line: printable, and cut to ``longest`` characters.

    >>> excerpt("soon")
    "'soon'"
    >>> excerpt("one two three four", 15)
    "'one two th'..."
    >>> excerpt("one\\ntwo", quoted=False)
    'one\\\\ntwo'
    """
    if not isinstance(text, str):
        text, quoted = _Short().repr(text), False
        if len(text) <= longest and text.isprintable():
            return text
    shown = repr(text[: longest + 1])
    if len(shown) > longest:
        n = longest
        while len(shown) > longest - 3:
            n -= max(1, (len(shown) - longest + 3) // 10)  # an escape has up to ten characters
            shown = repr(text[:n])
    dots = "" if shown == repr(text[: longest + 1]) else "..."
    return (shown if quoted else shown[1:-1]) + dots


def few(names: Iterable[str]) -> str:
    """The first of names that a file has, with commas between."""
    return excerpt(", ".join(islice(names, 20)), 120, quoted=False)


def reason(error: BaseException, longest: int = 160) -> str:
    """What an error of a library says, on one line and cut: it may quote a file."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()).rstrip(":") or type(error).__name__
    text = "".join(c if c.isprintable() else "?" for c in str(text))
    return text if len(text) <= longest else text[: longest - 3] + "..."
