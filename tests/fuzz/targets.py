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
    runs_c:  it runs the C kernels: what ``--sanitize`` is for; memory is then under no limit
    sanitize: ``make fuzz`` runs it so, where there is a compiler that can
    """

    module: str
    seconds: float = 20.0
    memory: int | None = None
    share: float = 1.0
    runs_c: bool = False
    sanitize: bool = False

    def load(self) -> Check:
        return importlib.import_module(f"fuzz.{self.module}").check


TARGETS: dict[str, Target] = {
    "command-line": Target("command_line", seconds=90.0, memory=3 << 30, share=2.0),
    "threads": Target("threads"),
    "readers": Target("readers", memory=1 << 30, share=2.0),
    "time-varying": Target("time_varying", share=2.0, runs_c=True),
    "time-invariant": Target("time_invariant", share=2.0, runs_c=True),
    "registered": Target("registered", runs_c=True, sanitize=True),
    "states": Target("states"),
    "estimation": Target("estimation"),
    "requests": Target("requests", memory=1 << 30),
}
