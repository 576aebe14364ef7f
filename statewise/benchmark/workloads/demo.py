"""The training step of the demo, as `statewise train --preset demo` takes it."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from statewise.benchmark.case import Action, Case, Workload, our_sides

LEARNING_RATE = 1e-5  # so low that the model stays what it was at the beginning


def training_step(quick: bool) -> Action:
    """One update: batch, loss, gradients, clipping, AdamW; gives the loss."""
    from statewise.data.text import TextDataConfig
    from statewise.training.environment import process_settings
    from statewise.training.presets import PRESETS
    from statewise.training.run_folder import RunFolder
    from statewise.training.run_state import RunState
    from statewise.training.update import loss_function, update

    config = PRESETS["tiny" if quick else "demo"]()
    folder = tempfile.TemporaryDirectory(prefix="statewise-benchmark-")
    data = TextDataConfig(source=str(_text(folder.name))) if quick else config.data
    state = RunState(RunFolder(Path(folder.name, "run"), replace(config, data=data)))
    loss_of = loss_function(state)

    def step(held: Any = folder) -> Any:
        with process_settings(state.config):
            return update(state, LEARNING_RATE, loss_of, loss_of)

    return step


def _text(folder: str) -> Path:
    path = Path(folder, "text.txt")
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(2000)))
    return path


def demo(quick: bool) -> list[Case]:
    from statewise.training.presets import PRESETS

    config = PRESETS["tiny" if quick else "demo"]().train
    step = functools.cache(functools.partial(training_step, quick))  # one run, trained by both in turn
    return [
        Case(
            name="demo",
            setting=f"batch {config.batch_size}, {config.length} tokens, text of the standard library",
            sides=our_sides(step),
            length=config.batch_size * (config.length or 1),
        )
    ]


WORKLOAD = Workload(name="demo", summary="the training step of `make demo`, with the C kernels and without", cases=demo)
