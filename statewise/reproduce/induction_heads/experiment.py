"""Induction heads: trained at 256 tokens, asked at up to a million, the state carried through them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

from statewise.checkpoints import load, resolve
from statewise.data.synthetic_languages import SyntheticLanguageConfig
from statewise.models.language_model import LanguageModel
from statewise.reproduce.induction_heads.asking import ask
from statewise.reproduce.induction_heads.report import make_report
from statewise.reproduce.induction_heads.settings import InductionHeadsSettings, asked_config, quick, run_config
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.seeds_of_a_run import train_and_test, whole
from statewise.reproduce.work import Work
from statewise.reproduce.workers import Job
from statewise.train import read_run
from statewise.train.environment import choose_device
from statewise.train.report import Reporter


def ask_checkpoint(folder: str, data: SyntheticLanguageConfig, reporter: Reporter) -> dict[str, Any]:
    """A part: the last checkpoint of a run, asked at one length."""
    device = choose_device(read_run(Path(folder)).train.device)
    model = cast(LanguageModel, load(resolve(Path(folder), "latest"), device=device))
    begun = time.monotonic()
    found = ask(model, data, progress=lambda fraction: reporter.progress(fraction, {}))
    return {**found, "seconds": time.monotonic() - begun}


def run(config: InductionHeadsSettings, work: Work) -> Report:
    training: dict[str, Job] = {}
    asking: dict[str, dict[str, Job]] = {}  # of each run
    for model in config.models:
        for seed in config.seeds:
            folder = work.folder / f"run-{model}-{seed}"
            runs = {"seed": run_config(config, model, seed)}
            name = f"{model}-{seed}"
            training[name], asking[name] = Job(train_and_test, (runs, str(folder))), {}
            for length in config.lengths_of(model):
                data = asked_config(config, model, length)
                asking[name][f"{name}-{length}"] = Job(ask_checkpoint, (str(folder / "seed"), data))
    n_asked = sum(map(len, asking.values()))
    work.begin(len(training) + n_asked, at_most=True)
    trained = work.parts(training, n_workers=config.workers)
    asked = {part: job for name, jobs in asking.items() if whole(trained[name]) for part, job in jobs.items()}
    work.leave_out(n_asked - len(asked))
    return make_report(config, trained, work.parts(asked, n_workers=config.workers))


REPRODUCTION = Reproduction(
    summary="induction heads: Mamba, H3 and attention, trained at 256 tokens and asked at up to a million",
    duration="two and a half hours on 2 cores",
    full=InductionHeadsSettings,
    quick=quick,
    run=run,
)
