"""What a run sends to TensorBoard or Weights & Biases, besides its own metrics.jsonl: ``train.reporting.log``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from statewise.errors import TrainingError, importing, reason
from statewise.training.report import Reporter, Reporters
from statewise.training.run_folder import RunFolder

# The name in train.reporting.log: the package that it needs, of an extra of the same name
PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


def require_logs(names: Sequence[str]) -> None:
    """Errors: InputError if a package that one of these logs needs is not installed."""
    for name in names:
        with importing(name, name, f"--log {name} needs"):
            importlib.import_module(PACKAGES[name])


@contextmanager
def with_logs(reporter: Reporter, run: RunFolder, step: int) -> Iterator[Reporters]:
    """The run's reporter, and the logs that its configuration asks for; within a ``with``, which closes the logs.

    step: of the checkpoint that the run continues from; later steps in the logs are done again
    Errors: TrainingError if a log cannot be opened for a new run. A run that continues does so without it.
    """
    told = Reporters(essential=reporter)
    for name in dict.fromkeys(run.config.train.reporting.log):
        try:
            told.reporters.append(_open(name, run, step))
        except Exception as error:
            what = f"--log {name} cannot be opened ({reason(error)})"
            if not step:
                told.close_others()
                begin = f"statewise train --resume {run.path}"
                remedy = f'fix that and begin: {begin}; or leave the log out: {begin} --set "train.reporting.log=[]"'
                raise TrainingError(f"{what}; {remedy}") from error
            told.event({"kind": "warning", "step": step, "message": f"{what}; the run continues without it"})
    try:
        yield told
    finally:
        told.close_others()


def _open(name: str, run: RunFolder, step: int) -> Reporter:
    if name == "wandb":
        from statewise.training.logs.wandb import WandbReporter

        return WandbReporter(run.path, run.config)
    from statewise.training.logs.tensorboard import TensorBoardReporter

    return TensorBoardReporter(run.path, run.config, step)
