"""The errors that Statewise raises at its boundaries.

Each is one line: what was given, what was expected and what to do.
The command line prints that line and exits with 2 (1 if a run cannot continue: TrainingError).
"""

from __future__ import annotations

import importlib.util
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path


class StatewiseError(Exception):
    """Base of all errors that are written for users; ``exit_code`` is what the command line returns."""

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
    """A checkpoint or run folder is missing, damaged, in use already, or has a different architecture."""


class TrainingError(StatewiseError, RuntimeError):
    """A run cannot continue."""

    exit_code = 1


class DivergedError(TrainingError):
    """Numbers of a run are no longer finite. ``what`` says which, without what is left of the run and what to do."""

    def __init__(self, message: str, what: str | None = None) -> None:
        super().__init__(message)
        self.what = message if what is None else what


# -- errors of one kind raised as another-----------------------------------------------------------------------------


@contextmanager
def retold(as_: type[StatewiseError], *of: type[StatewiseError], where: str = "") -> Iterator[None]:
    """Turns errors of the kinds ``of`` that are raised within it into one of the kind ``as_`` with the same message."""
    try:
        yield
    except of as error:
        raise as_(f"{where}{error}") from error


@contextmanager
def reading(path: object, as_: type[StatewiseError] = DataError) -> Iterator[None]:
    """Turns an error of the system about a file that cannot be read into one line."""
    try:
        yield
    except OSError as error:
        raise as_(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def importing(
    package: str, extra: str, purpose: str, as_: type[StatewiseError] = InputError, *, remedy: str | None = None
) -> Iterator[None]:
    """Turns an ImportError within it into one line: ``package`` is not installed, a file of yours has its name, or why
    it cannot be imported.

    purpose: "a plot needs"      remedy: what to do instead of installing the extra
    """
    try:
        yield
    except ImportError as error:
        remedy = f'pip install "statewise[{extra}]"' if remedy is None else remedy
        hiding = _hiding(package.split(".")[0])
        if hiding is not None:
            why = f"{package}, but {hiding} is imported instead; rename that file"
        elif isinstance(error, ModuleNotFoundError) and error.name == package.split(".")[0]:
            why = f"{package}, which is not installed; {remedy}"
        else:
            why = f"{package}, which cannot be imported here ({reason(error)}); {remedy}"
        raise as_(f"{purpose} {why}") from error


def package_folder(
    package: str, extra: str, purpose: str, as_: type[StatewiseError] = InputError, *, remedy: str | None = None
) -> Path:
    """The folder of an installed package. The package is not imported, which may take seconds.

    Errors: as :func:`importing`.
    """
    with importing(package, extra, purpose, as_, remedy=remedy):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations or _hiding(package) is not None:
            raise ModuleNotFoundError(f"there is no package {package}", name=package)
        return Path(spec.submodule_search_locations[0])


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
    """Raises an error of the kind ``as_`` for the first number below its minimum: name=(number, least)."""
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise as_(f"{name}={value} is out of range; use at least {least}")


# -- what others wrote, in a message ---------------------------------------------------------------------------------


class _Short(reprlib.Repr):
    """Only the beginning of what is long or deeply nested."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxtuple, self.maxstring, self.maxlong = 4, 12, 12, 12, 80, 80


def excerpt(text: object, longest: int = 80, *, quoted: bool = True) -> str:
    """Text or another value from a file, for a message of one line: printable, and cut to ``longest`` characters.

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
    """The first few names in a file, with commas between them."""
    return excerpt(", ".join(islice(names, 20)), 120, quoted=False)


def reason(error: BaseException, longest: int = 160) -> str:
    """The message of a library's error on one line, cut if it is long: it may quote a file."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()).rstrip(":") or type(error).__name__
    text = "".join(c if c.isprintable() else "?" for c in str(text))
    return text if len(text) <= longest else text[: longest - 3] + "..."
