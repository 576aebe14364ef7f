"""How a step reads its weights: which way is fastest depends on the processor, so the first steps try them.

A way changes no number, only when the memory is asked for.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from statewise import native
from statewise.decoding.instructions import Prefetch
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


# What was fastest somewhere, in the order that they are tried; the first is taken where nothing is measured.
# On Sapphire Rapids "passing", which goes past the second cache there, is half as fast as "near"; on Zen they are equal.
WAYS = (
    Way(Prefetch.NEAR, 4096),
    Way(Prefetch.NEAR, 1024),
    Way(Prefetch.PASSING, 4096),
    Way(Prefetch.NONE, 0),
)


def parse_way(text: str) -> Way:
    """"near 4096", "passing 1024", "none".

    Errors:  ConfigError for anything else.
    """
    name, _, ahead = text.strip().lower().partition(" ")
    if name == "none" and not ahead:
        return Way(Prefetch.NONE, 0)
    if name in ("near", "passing") and ahead.isdecimal() and 0 < int(ahead) <= 2**20:
        return Way(Prefetch[name.upper()], int(ahead))
    raise ConfigError(f"{VARIABLE}={text!r} is no way to read weights; use none, or near or passing and bytes: near 4096")


def asked_for() -> Way | None:
    """The way that the variable STATEWISE_PREFETCH names.

    Errors:  ConfigError if it names none.
    """
    text = os.environ.get(VARIABLE)
    return parse_way(text) if text else None


def uses_vnni() -> bool:
    """Whether AVX512-VNNI may be used where it is: unless the variable STATEWISE_VNNI is 0."""
    return os.environ.get("STATEWISE_VNNI") != "0"


@dataclass
class Trial:
    """Of one kind of step: the nanoseconds of each way so far."""

    n_tried: int = 0
    fastest: dict[Way, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.n_tried >= ROUNDS * len(WAYS)

    def best(self) -> Way:
        return min(self.fastest, key=lambda way: self.fastest[way], default=WAYS[0])

    @contextmanager
    def turn(self) -> Iterator[Way]:
        """The way of the next step, which is timed."""
        way = WAYS[self.n_tried % len(WAYS)]
        begun = time.perf_counter_ns()
        yield way
        taken = time.perf_counter_ns() - begun
        self.fastest[way] = min(taken, self.fastest.get(way, taken))
        self.n_tried += 1


@functools.cache
def trial(instructions: str, precision: str, n_threads: int, n_rows: int) -> Trial:
    """The one of this process."""
    return Trial()


@contextmanager
def way_of(precision: str, n_bytes: int, n_rows: int, n_threads: int, *, whole: bool) -> Iterator[Way]:
    """The way of a step, that it is called within.

    n_bytes: of all weights
    whole:   whether the step reads all of them; only such steps are compared
    """
    asked = asked_for()
    found = trial(native.instruction_set(), precision, n_threads, n_rows)
    if asked is not None:
        yield asked
    elif found.over or not whole or n_bytes < LARGE:
        yield found.best()
    else:
        with found.turn() as way:
            yield way
