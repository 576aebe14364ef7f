"""The Long Range Arena: models trained on its tasks, the published accuracies beside ours."""

from __future__ import annotations

from statewise.data.long_range import LongRangeData
from statewise.reproduce.lra.report import make_report
from statewise.reproduce.lra.settings import LraSettings, fitted, quick, require_folder, run_config
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.seeds_of_a_run import train_and_test
from statewise.reproduce.work import Work
from statewise.reproduce.workers import Job
from statewise.train.tasks import open_task


def part_name(model: str, task: str, seed: int) -> str:
    return f"{task}-{model}-{seed}"


def run(config: LraSettings, work: Work) -> Report:
    require_folder(config)
    runs, data = {}, {}
    for task in config.tasks:  # rows are made, and what is missing is told, before anything is trained
        for model in config.models:
            for seed in config.seeds:
                runs[part_name(model, task, seed)] = fitted(run_config(config, model, task, seed))
        opened = open_task(runs[part_name(config.models[0], task, config.seeds[0])])
        rows: LongRangeData = opened.data  # type: ignore[attr-defined]
        for split in ("validation", "test"):
            rows.split(split)
        data[task] = {"sizes": opened.sizes(), "described": rows.describe(), "caveats": list(rows.caveats)}
    work.begin(len(runs))
    jobs = {part: Job(train_and_test, ({"seed": run}, str(work.folder / f"run-{part}"))) for part, run in runs.items()}
    found = work.parts(jobs, n_workers=config.workers)
    ours = {
        (model, task): {seed: found[part_name(model, task, seed)] for seed in config.seeds}
        for task in config.tasks
        for model in config.models
    }
    return make_report(config, data, ours)


REPRODUCTION = Reproduction(
    summary="the Long Range Arena: S4, S4D, H3 and a Transformer on any of its six tasks",
    duration="an hour on 2 cores",
    full=LraSettings,
    quick=quick,
    run=run,
)
