"""The targets by name. A target is a function of a Draw: it makes one case and raises where something is wrong.

A module is imported when one of its targets runs, and so only by the process that runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.draw import Draw

Check = Callable[[Draw], None]


@dataclass(frozen=True)
class Target:
    """What to run, and how long and with how much memory one case may.

    module:  of this package; its function ``check`` is a case
    seconds: after which a case counts as hanging
    memory:  bytes that the process may have more than after its imports; None: no limit
    share:   of the time of a run, in proportion
    """

    module: str
    seconds: float = 20.0
    memory: int | None = None
    share: float = 1.0

    def load(self) -> Check:
        return importlib.import_module(f"fuzz.{self.module}").check


TARGETS: dict[str, Target] = {
    "time-varying": Target("time_varying", share=2.0),
    "states": Target("states"),
}
