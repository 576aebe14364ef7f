"""A run's numbers as TensorBoard reads them, in ``tensorboard`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.configuration import to_dict
from statewise.training.config import RunConfig
from statewise.training.logs.scalars import scalars
from statewise.training.report import Reporter, event_line
from statewise.training.run_folder import by_path

if TYPE_CHECKING:
    from statewise.training.tasks.base import Task

SECONDS_BETWEEN_WRITES = 10


class TensorBoardReporter(Reporter):
    """Curves against the step; the configuration as text, and as a row of the table of hyperparameters.

    step: of the checkpoint that the run continues from. TensorBoard no longer shows later steps
    """

    def __init__(self, folder: Path, config: RunConfig, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config, self.begins = to_dict(config), step == 0
        self.task: Task[Any, Any] | None = None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, flush_secs=SECONDS_BETWEEN_WRITES)
        self.file_writer: Any = self.writer.file_writer

    def begin(self, task: Task[Any, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        self.task = task
        if not self.begins:
            return
        self.writer.add_text("run.json", f"```json\n{json.dumps(self.config, indent=2)}\n```", 0)
        # SummaryWriter.add_hparams would make a folder, and a curve, of its own for them
        for summary in hparams(hyperparameters(self.config), {f"validation/{task.metric}": 0.0}):
            self.file_writer.add_summary(summary, 0)

    def event(self, record: Mapping[str, Any]) -> None:
        step = record.get("step")
        if self.task is not None:
            for name, value in scalars(record, self.task.unit).items():
                self.writer.add_scalar(name, value, step)
        if record["kind"] in ("train", "evaluation"):
            return
        line = event_line(record, self.task)
        if line is not None:
            self.writer.add_text("events", line, step)
        self.writer.flush()  # at a checkpoint, so that a run that goes on from it has all before it

    def close(self) -> None:
        self.writer.close()


def hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """The settings of a run by dotted names, without those of its single layers: a table has a column for each.

    >>> hyperparameters({"model": {"d_model": 8, "layers": [{"d_state": 4}]}, "train": {"log": [], "steps": None}})
    {'model.d_model': 8, 'train.log': '[]', 'train.steps': 'None'}
    """
    return {
        name: value if isinstance(value, (bool, int, float, str)) else str(value)
        for name, value in by_path(config).items()
        if not any(part.isdigit() for part in name.split("."))
    }
