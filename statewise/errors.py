"""The errors that Statewise raises at its boundaries.

Each carries one line that names what was given, what was expected and what to do.
The command line prints that line and exits with 2 (1 where a run cannot go on: TrainingError).
"""

from __future__ import annotations


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
