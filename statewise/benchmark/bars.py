"""The bars: what is promised of speed and memory, each a ratio taken in one run side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from statewise.benchmark.case import Missing
from statewise.benchmark.measured import Measured, Need
from statewise.benchmark.timing import Progress


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One promise.

    bar:      what the ratio has to reach, or with ``at_most`` may not exceed; None: reported only
    measure:  gives the ratio; it may raise :class:`Missing`
    needs:    the sides whose times it asks for
    """

    name: str
    setting: str
    bar: float | None
    measure: Callable[[Measured], float]
    at_most: bool = False
    needs: tuple[Need, ...] = ()

    def record(self, measured: Measured) -> dict[str, Any]:
        """The bar as JSON data: ``holds`` is None where there is none, or where it cannot be told, and ``why``."""
        setting = f"{self.setting} (quick: small sizes)" if measured.quick else self.setting
        head = {"name": self.name, "setting": setting}
        tail = {"bar": self.bar, "kind": "at most" if self.at_most else "at least"}
        try:
            ratio = self.measure(measured)
        except Missing as reason:
            return {**head, "ratio": None, **tail, "holds": None, "why": str(reason)}
        except (MemoryError, RuntimeError, OSError) as error:  # one bar that fails is no reason to lose the others
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return {**head, "ratio": None, **tail, "holds": None, "why": message}
        if not math.isfinite(ratio):
            return {**head, "ratio": None, **tail, "holds": False if self.bar is not None else None, "why": f"{ratio}"}
        holds = None if self.bar is None else ratio <= self.bar if self.at_most else ratio >= self.bar
        why = {"why": "reported, no bar"} if self.bar is None else {}
        return {**head, "ratio": float(f"{ratio:.4g}"), **tail, "holds": holds, **why}


def speed(name: str, workload: str, case: str, slow: str, fast: str, bar: float | None, setting: str = "") -> Bar:
    """How many times longer ``slow`` takes than ``fast``."""
    return Bar(
        name=name,
        setting=setting or case,
        bar=bar,
        measure=lambda measured: measured.times(workload, case).ratio(slow, fast),
        needs=((workload, case, slow), (workload, case, fast)),
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


def run_bars(
    bars: Sequence[Bar], *, quick: bool = False, seconds: float = 2.0, progress: Progress = lambda line: None
) -> list[dict[str, Any]]:
    """One record for each bar, in order: name, setting, ratio, bar, kind, holds, and why if that is None.

    quick: small sizes, one call of each side: whether everything runs, and no figure to trust
    """
    measured = Measured([need for bar in bars for need in bar.needs], quick=quick, seconds=seconds, progress=progress)
    records = []
    for bar in bars:
        records.append(bar.record(measured))
        progress(f"{bar.name}: {records[-1]['ratio']}, holds: {records[-1]['holds']}")
    return records
