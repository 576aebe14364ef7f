"""What can be measured, by name."""

from __future__ import annotations

from statewise.benchmark.case import Workload
from statewise.benchmark.workloads import demo, kalman, lengths, models, scan, ssd, streaming, time_invariant

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        scan.WORKLOAD,
        ssd.WORKLOAD,
        lengths.WORKLOAD,
        time_invariant.CONVOLUTION,
        time_invariant.FILTERS,
        streaming.SIGNAL,
        models.DECODING,
        streaming.POSITION,
        models.PREFILL,
        models.TRAINING,
        demo.WORKLOAD,
        kalman.WORKLOAD,
        kalman.FORMS,
    )
}
