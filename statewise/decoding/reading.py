"""How a step reads its weights: which way is fastest depends on the processor, so the first steps try them.

A way changes no number, only when the memory is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from statewise import native
from statewise.decoding.operands import Prefetch
from statewise.errors import ConfigError

VARIABLE = "STATEWISE_PREFETCH"
LARGE = 2**24  # bytes of weights: fewer lie in a cache, where there is nothing to choose
ROUNDS = 3  # steps that each way is tried for; the fastest counts, since whatever disturbs a step makes it longer


@dataclass(frozen=True)
class Way:
    """kind: see :class:`Prefetch`; ahead: in bytes"""

    kind: Prefetch
    ahead: int

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.ahead}" if self.ahead else self.kind.name.lower()


# Those that are fastest somewhere, in the order in which they are tried; the first is taken where nothing is measured.
# On an Intel Xeon (Sapphire Rapids) "passing" took 1.7 to 2.3 times as long as "near", which is best 1,024 ahead in
# bfloat16 and 4,096 in the others; on AMD Zen they differ by a tenth.
WAYS = (
    Way(Prefetch.NEAR, 4096),
    Way(Prefetch.NEAR, 1024),
    Way(Prefetch.PASSING, 4096),
    Way(Prefetch.NONE, 0),
)


def parse_way(text: str) -> Way:
    """The way that "near 4096", "passing 1024" or "none" names.

    Errors:  ConfigError for anything else.
    """
    name, _, ahead = " ".join(text.lower().split()).partition(" ")
    if name == "none" and not ahead:
        return Way(Prefetch.NONE, 0)
    if name in ("near", "passing") and ahead.isdecimal() and 0 < int(ahead) <= 2**20:
        return Way(Prefetch[name.upper()], int(ahead))
    raise ConfigError(
        f"{VARIABLE}={text!r} is not a way to read weights; use none, or near or passing with bytes, such as near 4096"
    )


def asked_for() -> Way | None:
    """The way that the variable STATEWISE_PREFETCH names.

    Errors:  ConfigError if it names none.
    """
    text = os.environ.get(VARIABLE)
    return parse_way(text) if text else None


def uses_vnni() -> bool:
    """Whether AVX512-VNNI may be used where it is: unless the variable STATEWISE_VNNI is 0.

    Errors:  ConfigError if it is neither 0 nor 1.
    """
    text = os.environ.get("STATEWISE_VNNI") or "1"
    if text not in ("0", "1"):
        raise ConfigError(f"STATEWISE_VNNI={text!r} is neither 0 nor 1; use 0 to do without AVX512-VNNI, or unset it")
    return text == "1"


@dataclass
class Trial:
    """For one kind of step, the fewest nanoseconds of each way so far."""

    n_tried: int = 0
    fewest: dict[Way, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.n_tried >= ROUNDS * len(WAYS)

    def best(self) -> Way:
        return min(self.fewest, key=lambda way: self.fewest[way]) if self.over else WAYS[0]

    @contextmanager
    def turn(self) -> Iterator[Way]:
        """The way of the next step, which is timed."""
        way = WAYS[self.n_tried % len(WAYS)]
        begun = time.perf_counter_ns()
        yield way
        taken = time.perf_counter_ns() - begun
        self.fewest[way] = min(taken, self.fewest.get(way, taken))
        self.n_tried += 1


Kind = tuple[str, str, int, int, int]  # instruction set, precision, bytes of weights, threads, sequences
_trials: dict[Kind, Trial] = {}


@contextmanager
def way_of(precision: str, n_bytes: int, n_rows: int, n_threads: int, *, whole: bool) -> Iterator[Way]:
    """The way of a step, which is called within.

    n_bytes: of all weights
    whole:   whether the step reads all of them; only such steps are compared
    """
    asked = asked_for()
    if asked is not None:
        yield asked
        return
    if n_bytes < LARGE:
        yield WAYS[0]
        return
    kind = (native.instruction_set(), precision, n_bytes, n_threads, n_rows)
    trial = _trials.setdefault(kind, Trial())
    if trial.over or not whole:
        yield trial.best()
    else:
        with trial.turn() as way:
            yield way


def forget() -> None:
    """Lets the next steps try the ways again."""
    _trials.clear()


def tried() -> list[dict[str, Any]]:
    """What this process has tried, as JSON data: for each kind of step the milliseconds of each way, and the ``way``
    in use."""
    names = ("instruction_set", "precision", "bytes", "threads", "sequences")
    return [
        {
            **dict(zip(names, kind)),
            "milliseconds": {str(way): n / 1e6 for way, n in trial.fewest.items()},
            "way": str(trial.best()),
        }
        for kind, trial in list(_trials.items())
    ]
