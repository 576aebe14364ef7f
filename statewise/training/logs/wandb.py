"""A run's numbers to Weights & Biases, whose own environment variables say where to and how."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.configuration import to_dict
from statewise.training.config import RunConfig
from statewise.training.logs.scalars import scalars
from statewise.training.metrics import write_bytes
from statewise.training.report import Reporter
from statewise.training.several_folder import RUNS_FILE

if TYPE_CHECKING:
    from statewise.training.tasks.base import Task

PROJECT = "statewise"  # unless WANDB_PROJECT names another
ID_FILE = "id.txt"  # beside what W&B keeps in the run's folder


class WandbReporter(Reporter):
    """Curves against the step, and the configuration.

    What W&B writes here is in ``wandb`` in the run's folder, with the id by which a resumed run continues there. A run
    is called by its folder; one of several has theirs as its group.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        folder = folder.absolute()
        several = folder.parent if (folder.parent / RUNS_FILE).exists() else None
        self.unit, self.ended = "", False
        self.run = wandb.init(
            dir=folder,
            id=_own_id(folder, one_of_several=several is not None),
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or (f"{several.name}/{folder.name}" if several else folder.name),
            group=os.environ.get("WANDB_RUN_GROUP") or (several.name if several else None),
            config=to_dict(config),
            allow_val_change=True,  # what a resumed run may set anew
            settings=wandb.Settings(console="off"),  # our bar is for the terminal
        )
        # Steps beyond the checkpoint that a run goes on from are done again, and W&B has them already
        self.first = self.run.starting_step

    def begin(self, task: Task[Any, Any]) -> None:
        self.unit = task.unit
        best = "max" if task.higher_is_better else "min"
        self.run.define_metric(f"validation/{task.metric}", summary=best)

    def event(self, record: Mapping[str, Any]) -> None:
        self.ended = self.ended or record["kind"] in ("end", "stop")
        numbers = scalars(record, self.unit)
        if numbers and record["step"] >= self.first:
            self.run.log(numbers, step=record["step"])

    def close(self) -> None:
        self.run.finish(exit_code=0 if self.ended else 1)


def _own_id(folder: Path, *, one_of_several: bool) -> str:
    """The id that the run has there: the one in its folder; else that of WANDB_RUN_ID, or a new one."""
    path = folder / "wandb" / ID_FILE
    if not path.exists():
        given = None if one_of_several else os.environ.get("WANDB_RUN_ID")
        write_bytes(path, (given or secrets.token_hex(4)).encode())
    return path.read_text("utf-8").strip()
