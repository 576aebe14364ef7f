"""The bars: what is promised of speed and memory, each a ratio taken in one run side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statewise.benchmark.case import Missing
from statewise.benchmark.ceilings import highest
from statewise.benchmark.measured import Measured, Need
from statewise.benchmark.timing import Progress, describe

QUICK = "quick"  # why a bar is not judged with small sizes


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one call of a side has to do at least, of the kind that takes most of its time.

    ceilings:  the names of those that bind it, of which the highest counts
    amount:    bytes, operations or exponentials of one call
    """

    need: Need
    ceilings: tuple[str, ...]
    amount: Callable[[], float]

    def share(self, measured: Measured) -> dict[str, Any]:
        """``share`` of the ceiling that binds it, and which that is; nothing where one of them is not known."""
        workload, case, side = self.need
        bound, times = highest(measured.ceilings, self.ceilings), measured.times(workload, case)
        if bound is None or side not in times.milliseconds:
            return {}
        name, a_second = bound
        reached = self.amount() / (times.milliseconds[side] / 1e3)
        return {"share": float(f"{reached / a_second:.4g}"), "ceiling": name}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One promise.

    bar:      what the ratio has to reach, or with ``at_most`` may not exceed; None: reported only
    measure:  gives the ratio; it may raise :class:`Missing`
    needs:    the sides whose times it asks for
    work:     of our side, where it is clear which ceiling binds it
    """

    name: str
    setting: str
    bar: float | None
    measure: Callable[[Measured], float]
    at_most: bool = False
    needs: tuple[Need, ...] = ()
    work: Work | None = None

    def unknown(self, why: str, quick: bool = False) -> dict[str, Any]:
        """The record of a bar that could not be measured."""
        setting = f"{self.setting} (quick: small sizes)" if quick else self.setting
        kind = "at most" if self.at_most else "at least"
        head = {"name": self.name, "setting": setting, "ratio": None}
        return {**head, "bar": self.bar, "kind": kind, "holds": None, "why": why}

    def record(self, measured: Measured) -> dict[str, Any]:
        """The bar as JSON data: ``holds`` is None where there is none, or where it could not be measured, and
        ``why``."""
        try:
            ratio = self.measure(measured)
        except Missing as reason:
            return self.unknown(str(reason), measured.quick)
        except Exception as error:  # one bar that fails is no reason to lose the others
            return self.unknown(describe(error), measured.quick)
        if not math.isfinite(ratio):
            broken = self.unknown(f"{ratio}", measured.quick)
            return broken if self.bar is None or measured.quick else broken | {"holds": False}
        why = "reported, no bar" if self.bar is None else QUICK  # sizes at which no promise was made
        known = self.unknown(why, measured.quick) | {"ratio": float(f"{ratio:.4g}")}
        if self.bar is None or measured.quick:
            return known
        del known["why"]
        return known | {"holds": ratio <= self.bar if self.at_most else ratio >= self.bar}


def speed(
    name: str,
    workload: str,
    case: str,
    slow: str,
    fast: str,
    bar: float | None,
    setting: str = "",
    *,
    ceilings: tuple[str, ...] = (),
    amount: Callable[[], float] | None = None,
) -> Bar:
    """How many times longer ``slow`` takes than ``fast``; ceilings, amount: of ``fast`` as in :class:`Work`."""
    return Bar(
        name=name,
        setting=setting or case,
        bar=bar,
        measure=lambda measured: measured.times(workload, case).ratio(slow, fast),
        needs=((workload, case, slow), (workload, case, fast)),
        work=None if amount is None else Work(need=(workload, case, fast), ceilings=ceilings, amount=amount),
    )


def growth(name: str, workload: str, cases: Sequence[str], side: str, bar: float, setting: str) -> Bar:
    """The largest cost of a token among the cases over the smallest."""

    def measure(measured: Measured) -> float:
        costs = []
        for case in cases:
            times = measured.times(workload, case)
            if side in times.missing:
                raise Missing(times.missing[side])
            costs.append(times.milliseconds[side] / times.length)
        return max(costs) / min(costs)

    needs = tuple((workload, case, side) for case in cases)
    return Bar(name=name, setting=setting, bar=bar, measure=measure, at_most=True, needs=needs)


def memory(name: str, workload: str, case: str, fast: str, slow: str, bar: float) -> Bar:
    """The peak above inputs and outputs of one side over that of the other."""

    def measure(measured: Measured) -> float:
        theirs = measured.peak(workload, case, slow)
        return measured.peak(workload, case, fast).above_outputs / max(1, theirs.above_outputs)

    return Bar(
        name=name,
        setting=f"{case}; peak above inputs and outputs, fresh processes",
        bar=bar,
        measure=measure,
        at_most=True,
    )


def share(name: str, setting: str, work: Work, bar: float) -> Bar:
    """How much of the ceiling that binds it our side reaches."""

    def measure(measured: Measured) -> float:
        workload, case, side = work.need
        times = measured.times(workload, case)
        if side in times.missing:
            raise Missing(times.missing[side])
        if measured.quick:  # its time is that of small sizes, of which no share can be told
            raise Missing(QUICK)
        found = work.share(measured)
        if not found:
            raise Missing("this machine's ceilings have not been measured; run: statewise benchmark ceilings")
        return float(found["share"])

    return Bar(name=name, setting=setting, bar=bar, measure=measure, needs=(work.need,))


def _share(bar: Bar, work: Work, measured: Measured, progress: Progress) -> dict[str, Any]:
    try:
        return work.share(measured)
    except Exception as error:  # the ratio is what was asked for, and stands without its share
        progress(f"{bar.name}: its share of a ceiling is not known: {describe(error)}")
        return {}


def run_bars(
    bars: Sequence[Bar],
    *,
    quick: bool = False,
    seconds: float = 2.0,
    progress: Progress = lambda line: None,
    ceilings: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """One record for each bar, in order: name, setting, ratio, bar, kind, holds, and why if that is None.

    quick: small sizes, one call of each side: whether everything runs, and no figure to trust
    ceilings: as :func:`measure_ceilings` records them; where one binds a bar, its record has ``share`` and ``ceiling``

    Interrupted from the keyboard it gives what it has, the bars that are left without a ratio.
    """
    needs = [need for bar in bars for need in bar.needs]
    measured = Measured(needs, quick=quick, seconds=seconds, progress=progress, ceilings=ceilings)
    records = []
    for bar in bars:
        try:
            record = bar.record(measured)
            if bar.work is not None and record["ratio"] is not None and ceilings and not quick:
                record |= _share(bar, bar.work, measured, progress)
            records.append(record)
        except KeyboardInterrupt:
            return records + [rest.unknown("interrupted", quick) for rest in bars[len(records) :]]
        progress(f"{bar.name}: {records[-1]['ratio']}, holds: {records[-1]['holds']}")
    return records
