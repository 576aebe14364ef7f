"""Functions that receive a run's events, and may end it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statewise.errors import InputError
from statewise.training.report import Reporter, Reporters, TerminalReporter

Callback = Callable[[Mapping[str, Any]], object]


class Callbacks(Reporter):
    """Calls each function with each event's record. One that returns True ends the run after its step.

    An exception in a function ends the run at once and comes out of the call. What was saved before stays.
    """

    def __init__(self, functions: Sequence[Callback]) -> None:
        self.functions = tuple(functions)
        self.asked = False  # for the end

    def event(self, record: Mapping[str, Any]) -> None:
        for function in self.functions:
            self.asked |= function(record) is True

    def wants_the_end(self) -> bool:
        return self.asked


def listeners(callbacks: Sequence[Any], progress: bool | None) -> tuple[Reporter, Callable[[], bool]]:
    """A reporter for all of them, and what says whether one wants the run to end.

    callbacks: Reporters, and functions of a record
    progress:  a bar; None: where standard output is a terminal

    Errors:  InputError for a callback that is neither.
    """
    reporters = [one for one in callbacks if isinstance(one, Reporter)]
    functions = [one for one in callbacks if not isinstance(one, Reporter)]
    for number, one in enumerate(callbacks):
        if isinstance(one, type) or not (isinstance(one, Reporter) or callable(one)):
            what = f"the class {one.__name__}" if isinstance(one, type) else f"a {type(one).__name__}"
            raise InputError(f"callbacks[{number}] is {what}; give a function of a record, or a Reporter object")
    if sys.stdout.isatty() if progress is None else progress:
        from rich.console import Console

        reporters.insert(0, TerminalReporter(Console()))
    essential = Callbacks(functions)
    return Reporters(*reporters, essential=essential), essential.wants_the_end
