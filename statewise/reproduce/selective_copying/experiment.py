"""Selective copying: layers whose coefficients follow the input beside layers whose coefficients do not."""

from __future__ import annotations

from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.seeds_of_a_run import train_and_test
from statewise.reproduce.selective_copying.report import make_report
from statewise.reproduce.selective_copying.settings import SelectiveCopyingSettings, quick, run_config
from statewise.reproduce.work import Work
from statewise.reproduce.workers import Job


def run(config: SelectiveCopyingSettings, work: Work) -> Report:
    jobs = {}
    for model in config.models:
        for seed in config.seeds:
            part = f"{model}-{seed}"
            runs = {"seed": run_config(config, model, seed)}
            jobs[part] = Job(train_and_test, (runs, str(work.folder / f"run-{part}")))
    work.begin(len(jobs))
    return make_report(config, work.parts(jobs, n_workers=config.workers))


REPRODUCTION = Reproduction(
    summary="selective copying: Mamba and Mamba-2 beside S4, gated S4D and H3",
    duration="an hour on 2 cores",
    full=SelectiveCopyingSettings,
    quick=quick,
    run=run,
)
