"""The Long Range Arena: models trained on its tasks, the published accuracies next to ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from statewise.data.long_range import LongRangeData
from statewise.errors import CheckpointError, ConfigError
from statewise.reproduce.claim import Claim
from statewise.reproduce.files import write_json
from statewise.reproduce.lra.published import (
    arena_task,
)
from statewise.reproduce.lra.settings import LraSettings, run_config
from statewise.reproduce.lra.tables import Found, report
from statewise.reproduce.training import trained
from statewise.reproduce.work import Work
from statewise.training.config import RunConfig
from statewise.training.presets import fit_model
from statewise.training.tasks import open_task

DATA_FILE = "data.json"  # what was read: with it a finished folder is reported without the data


def measure(config: LraSettings, work: Work) -> Found:
    reading = [task for task in config.tasks if not task.endswith("-gen")]
    if reading and config.folder is None:
        raise ConfigError(
            f"LraSettings.tasks: {reading[0]!r} reads files; set folder (--data-dir) to where they are, or leave the "
            'task out, as in tasks=["listops-gen"]'
        )
    runs, file = {}, work.folder / DATA_FILE
    cells = list(config.cells())
    left = {cell.task for cell in cells if not work.is_done(cell.part)}
    known = {task: found for task, found in known_data(file).items() if task in config.tasks and task not in left}
    data = dict(known)
    for cell in cells:  # rows are made, and what is missing is told, before anything is trained
        runs[cell] = run_config(config, *cell)
        if cell.task in known:  # nothing is left to train, so nothing is read
            continue
        runs[cell] = fitted(runs[cell])
        if cell.task not in data:
            opened = open_task(runs[cell])
            rows: LongRangeData = opened.data  # type: ignore[attr-defined]
            for split in ("validation", "test"):
                rows.split(split)
            data[cell.task] = {"sizes": opened.sizes(), "described": rows.describe(), "caveats": list(rows.caveats)}
    work.begin(len(runs))
    found = work.parts(
        {cell.part: trained(work, cell.part, {"seed": run}, config.test_rows) for cell, run in runs.items()}
    )
    write_json(file, data)
    return Found({task: data[task] for task in config.tasks}, {cell: found[cell.part] for cell in runs})


def known_data(file: Path) -> dict[str, dict[str, Any]]:
    """For each task, what was read when its last run was made; nothing where the folder does not say.

    Errors:  CheckpointError for a damaged file.
    """
    if not file.exists():
        return {}
    try:
        known = json.loads(file.read_text("utf-8"))
        return {
            task: {name: found[name] for name in ("sizes", "described", "caveats")} for task, found in known.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        raise CheckpointError(f"{file} is damaged; delete it to have the data read again") from None


def fitted(run: RunConfig) -> RunConfig:
    """The run with the vocabulary and the classes of its data, where these hang on the documents."""
    task = run.data.task  # type: ignore[attr-defined]
    return fit_model(run) if arena_task(task) in ("text", "retrieval") else run


FEW_ROWS = {"listops-gen": 4000, "pathfinder-gen": 2000, "path-x-gen": 500}  # for training
QUICK = ["listops-gen:data.min_length=20", "listops-gen:data.max_length=100"]
QUICK += [
    f"{task}:data.n_{split}={n}"
    for task, n_train in FEW_ROWS.items()
    for split, n in (("train", n_train), ("validation", 200), ("test", 200))
]
CLAIM = Claim(
    summary="the Long Range Arena: S4, S4D, H3, Mamba-2 and a Transformer on any of its six tasks",
    duration="an hour on 2 cores",
    source="S4 (arXiv:2206.12037), S4D (arXiv:2206.11893), H3 (arXiv:2212.14052) and others, as the table names them",
    settings=LraSettings,
    quick='models=["s4","s4d","h3","mamba2","transformer"] tasks=["listops-gen"] minutes=0.3 d_model=32 n_layers=2 '
    "d_state=8 n_heads=2 evaluations=2 evaluate_items=64 workers=1 "
    f"settings={json.dumps(QUICK, separators=(',', ':'))}",
    measure=measure,
    report=report,
)
