"""What has been measured in one run of the bars: every case once, with the sides that any bar asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statewise.benchmark.memory import Peak, peak_memory
from statewise.benchmark.timing import Progress, Times, time_case
from statewise.benchmark.workloads import WORKLOADS

Need = tuple[str, str, str]  # workload, case, side


class Measured:
    """Times and peaks, measured when they are first asked for.

    needs:    the sides that will be asked for, so that those of a case take turns
    seconds:  for each case; 0 for one call of each side
    ceilings: of this machine, as measure_ceilings records them; () if they are not known
    """

    def __init__(
        self,
        needs: Iterable[Need],
        *,
        quick: bool,
        seconds: float,
        progress: Progress,
        ceilings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.ceilings = ceilings
        self.quick, self.seconds, self.progress = quick, 0.0 if quick else seconds, progress
        self._sides: dict[tuple[str, str], set[str]] = defaultdict(set)
        for workload, case, side in needs:
            self._sides[workload, case].add(side)
        self._times: dict[tuple[str, str], Times] = {}
        self._peaks: dict[Need, Peak] = {}

    def times(self, workload: str, case: str) -> Times:
        key = (workload, case)
        if key not in self._times:
            self._times[key] = time_case(
                WORKLOADS[workload].case(case, self.quick),
                seconds=self.seconds,
                only=self._sides[key],
                progress=self.progress,
            )
        return self._times[key]

    def peak(self, workload: str, case: str, side: str, processes: int = 1) -> Peak:
        """The least of this many processes: how an allocator cuts its pages only ever adds to what is needed.

        Errors:  Missing where the side cannot run.
        """
        key = (workload, case, side)
        if key not in self._peaks:
            self.progress(f"memory of {case}: {side}")
            found = [peak_memory(workload, case, side, quick=self.quick) for _ in range(processes)]
            self._peaks[key] = min(found, key=lambda peak: peak.above_outputs)
        return self._peaks[key]
