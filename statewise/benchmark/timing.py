"""Time of the sides of a case: in turns, in one process, medians."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from statewise.benchmark.case import Action, Case, Missing

TURN = 0.02  # seconds that a side is called again and again before the next has its turn
SLOW, SLOWEST = 1.0, 4.0  # seconds of a call from which a side has two turns, and one: so that all bars take minutes
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Times:
    """Median milliseconds of each side of a case, and why the others have none."""

    name: str
    setting: str
    length: int
    milliseconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer ``slow`` takes. Missing if one of them has not run."""
        for side in (slow, fast):
            if side in self.missing:
                raise Missing(self.missing[side])
        return self.milliseconds[slow] / self.milliseconds[fast]


def time_case(
    case: Case, *, seconds: float, only: Collection[str] | None = None, progress: Progress | None = None
) -> Times:
    """The sides take turns until the time is used up, each at least ``case.rounds`` times, after one call uncounted.

    A side whose call takes more than 1 s has only two turns then, from 4 s on one.

    With ``seconds`` of 0 each has one turn of one call: to see that it runs.

    A turn of a fast side is many calls, so that it is measured warm, as it runs in a model. What slows the machine
    for a while slows all sides, and their order changes from round to round.
    """
    result = Times(case.name, case.setting, case.length)
    actions: dict[str, Action] = {}
    calls: dict[str, int] = {}
    least: dict[str, int] = {}
    for name, prepare in case.sides.items():
        if only is not None and name not in only:
            continue
        if progress is not None:
            progress(f"{case.name}: {name}")
        try:
            action = prepare()
            first = time_once(action)
        except Missing as reason:
            result.missing[name] = str(reason)
            continue
        except Exception as error:  # a side that fails is no reason to lose the others
            result.missing[name] = describe(error)
            continue
        actions[name] = action
        least[name] = _least(case.rounds, first) if seconds else 1
        calls[name] = 1 if first > TURN or not seconds else min(20, math.ceil(TURN / max(time_once(action), 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in actions}
    begun, rounds = time.perf_counter(), 0
    while actions:
        over = time.perf_counter() - begun >= seconds
        turn = [name for name in actions if rounds < least[name] or not over]
        if not turn:
            break
        if seconds:
            gc.collect()  # not in the middle of a call; it takes longer than all of a quick case
        for name in turn if rounds % 2 == 0 else reversed(turn):
            found[name] += [time_once(actions[name]) for _ in range(calls[name])]
        rounds += 1
    result.milliseconds.update({name: 1e3 * statistics.median(some) for name, some in found.items()})
    return result


def _least(rounds: int, first: float) -> int:
    return rounds if first < SLOW else min(rounds, 2 if first < SLOWEST else 1)


def describe(error: Exception) -> str:
    """Its kind and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def time_once(action: Action) -> float:
    """Seconds of one call; its outputs are freed after the clock has stopped."""
    begun = time.perf_counter()
    outputs = action()
    taken = time.perf_counter() - begun
    del outputs
    return taken
