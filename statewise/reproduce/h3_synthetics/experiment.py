"""H3's two synthetic languages: seven models on induction heads and associative recall, at the published settings."""

from __future__ import annotations

from statewise.reproduce.h3_synthetics.report import make_report
from statewise.reproduce.h3_synthetics.settings import H3SyntheticsSettings, run_config
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.seeds_of_a_run import train_and_test
from statewise.reproduce.work import Work
from statewise.reproduce.workers import Job


def run(config: H3SyntheticsSettings, work: Work) -> Report:
    jobs = {}
    for task in config.tasks:
        for model in config.models:
            part = f"{task}-{model}"
            runs = {f"seed-{seed}": run_config(config, task, model, seed) for seed in config.seeds}
            jobs[part] = Job(train_and_test, (runs, str(work.folder / f"run-{part}")))
    work.begin(len(jobs))
    return make_report(config, work.parts(jobs, n_workers=config.workers))


REPRODUCTION = Reproduction(
    summary="H3's two synthetic languages: seven models, three seeds each",
    duration="three hours on 2 cores",
    full=H3SyntheticsSettings,
    quick=lambda: H3SyntheticsSettings(
        epochs=(2, 2), seeds=(0,), n_train=330, n_validation=64, n_test=64, workers=1, bars=False
    ),
    run=run,
)
