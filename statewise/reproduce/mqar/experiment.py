"""Multi-query associative recall: accuracy against the size of the state, for four mixers at two lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch.utils import _pytree as pytree

from statewise.checkpoints import load, resolve
from statewise.data.synthetic_languages import SyntheticLanguageConfig
from statewise.errors import DivergedError
from statewise.mixers.attention import Attention
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.mqar.report import make_report
from statewise.reproduce.mqar.settings import MqarSettings, cell_name, part_name, quick, run_config
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.work import Stopped, Work
from statewise.reproduce.workers import Job
from statewise.train.config import RunConfig
from statewise.train.environment import choose_device
from statewise.train.loop import train
from statewise.train.metrics import read_metrics
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, RUN_FILE
from statewise.train.tasks import open_task


def state_size(config: RunConfig) -> int:
    """Numbers of the state of all layers: what ``initial_state`` holds, and of attention its keys and values for a row
    of the full length."""
    length = cast(SyntheticLanguageConfig, config.data).length
    model = cast(LanguageModel, config.model.build())
    total = 0
    for block, state in zip(model.blocks, model.initial_state(batch=1).layers):
        if isinstance(block.mixer, Attention):
            total += 2 * length * block.mixer.n_kv_heads * block.mixer.d_head
        else:
            total += sum(leaf.numel() for leaf in pytree.tree_leaves(state))
    return total


def train_and_test(run: RunConfig, folder: str, reporter: Reporter) -> dict[str, Any]:
    """A part: trains the run, or goes on with it, and tests its best checkpoint.

    A run that diverged is a result: "diverged" says where, and nothing was tested.

    Errors: TrainingError if an evaluation failed for another reason; Stopped, with everything saved.
    """
    path = Path(folder)
    shared = {
        "state": state_size(run),
        "parameters": n_parameters(run.model),
        "d_model": cast(LanguageModelConfig, run.model).d_model,
        "lr": run.train.lr,
    }
    try:
        result = train(run, path, resume=(path / RUN_FILE).exists(), reporter=reporter)
    except DivergedError as error:
        return {**shared, "diverged": error.what}
    if result.signal is not None:
        raise Stopped(result.signal)
    course = [line for line in read_metrics(path / METRICS_FILE) if line["kind"] == "evaluation"]
    model, task = load(resolve(path, "best"), device=choose_device(run.train.device)), open_task(run)
    record = task.evaluate(model, "test")
    return {
        **shared,
        "diverged": None,
        "steps": result.step,
        "stopped_early": _has_reached(run.train.stop_at, result.validation),
        "training_seconds": course[-1]["seconds"],
        "course": [(line["step"], line["accuracy"]) for line in course],
        "validation_loss": course[-1]["loss"],
        **{name: record[name] for name in ("accuracy", "accuracy_of_examples", "loss", "chance")},
    }


def _has_reached(goal: float | None, accuracy: float | None) -> bool:
    return goal is not None and accuracy is not None and accuracy >= goal


def run(config: MqarSettings, work: Work) -> Report:
    """One rate after the other: for each of them those are trained that have not yet what they are asked for."""
    cells = {
        cell_name(config, model, size, i): (model, size, i)
        for i in range(len(config.lengths))
        for model in config.models
        for size in range(config.n_sizes)
    }
    work.begin(len(cells) * len(config.rates), at_most=True)
    tried: dict[str, dict[float, dict[str, Any]]] = {cell: {} for cell in cells}
    for rate in config.rates:
        jobs = {}
        for cell, place in cells.items():
            if not any(found.get("stopped_early") for found in tried[cell].values()):
                part = part_name(cell, rate)
                jobs[part] = Job(train_and_test, (run_config(config, *place, rate), str(work.folder / f"run-{part}")))
        work.leave_out(len(cells) - len(jobs))
        done = work.parts(jobs, n_workers=config.workers)
        for cell in cells:
            if part_name(cell, rate) in done:
                tried[cell][rate] = done[part_name(cell, rate)]
    return make_report(config, tried)


REPRODUCTION = Reproduction(
    summary="MQAR: accuracy against state size for H3, linear attention, Mamba-2 and attention",
    duration="an hour and a half on 2 cores",
    full=MqarSettings,
    quick=quick,
    run=run,
)
