"""The losses of training in bfloat16 beside those in float32: the same batches, the same weights at the beginning.

    python experiments/bfloat16_training.py runs/bfloat16 --models mamba-130m,mamba2-130m --steps 300 --batch 1

Each model learns the source of Python's standard library, byte by byte: the demo by its own optimiser, the others by
AdamW. Writes ``losses.json``, the losses of every step in both precisions and their times, and ``losses.png``. The two
precisions take their steps in turns, so that a ratio of times is of the same minutes of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from statewise.benchmark.processor import describe_processor, processor
from statewise.data.text import TextDataConfig
from statewise.models.presets import PRESETS as MODELS
from statewise.reproduce.files import write_json
from statewise.training.environment import process_settings
from statewise.training.presets import PRESETS
from statewise.training.run_folder import RunFolder
from statewise.training.run_state import RunState
from statewise.training.update import loss_function, update

PRECISIONS = ("float32", "bfloat16")
LR = {"demo": 4e-3, "mamba-130m": 6e-4, "mamba2-130m": 6e-4}
WARM_UP = 20  # steps


def stepper(name: str, precision: str, folder: Path, *, batch: int, length: int) -> Callable[[int], float]:
    """Takes the step of that number; gives its loss."""
    config = replace(PRESETS["demo"](), data=TextDataConfig())
    model = MODELS[name](257)
    optimizer = config.train.optimizer if name == "demo" else replace(config.train.optimizer, matrices="adamw")
    train = replace(config.train, batch_size=batch, length=length, precision=precision, optimizer=optimizer)
    state = RunState(RunFolder(folder / precision, replace(config, model=model, train=train)))
    loss_of = loss_function(state)

    def step(number: int) -> float:
        with process_settings(state.config):
            return update(state, LR[name] * min(1.0, (number + 1) / WARM_UP), loss_of, loss_of)[0]

    return step


def compare(name: str, n_steps: int, *, batch: int, length: int) -> dict[str, Any]:
    losses: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    times: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory(prefix="statewise-bfloat16-") as folder:
        steps = {p: stepper(name, p, Path(folder), batch=batch, length=length) for p in PRECISIONS}
        for number in range(n_steps):
            for precision, step in steps.items():
                begin = time.perf_counter()
                losses[precision].append(round(step(number), 5))
                times[precision].append(1e3 * (time.perf_counter() - begin))
            if number % 25 == 24:
                shown = ", ".join(f"{p} {statistics.fmean(losses[p][-25:]):.4f}" for p in PRECISIONS)
                print(f"{name}, step {number + 1}: {shown}", flush=True)
    medians = {precision: round(statistics.median(found), 1) for precision, found in times.items()}
    last = {precision: round(statistics.fmean(found[-50:]), 4) for precision, found in losses.items()}
    return {
        "batch": batch,
        "length": length,
        "milliseconds": medians,
        "speed": round(medians["float32"] / medians["bfloat16"], 2),
        "last 50": last,
        "losses": losses,
    }


def draw(found: dict[str, Any], where: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(found), 3.8), layout="constrained")
    for axes, (name, record) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items()):
        for precision, colour in zip(PRECISIONS, ("tab:gray", "tab:blue")):
            losses = record["losses"][precision]
            smooth = [statistics.fmean(losses[max(0, i - 9) : i + 1]) for i in range(len(losses))]
            style = "-" if precision == "float32" else "--"
            label = f"{precision}, {record['milliseconds'][precision]:,.0f} ms a step"
            axes.plot(smooth, style, color=colour, label=label)
        axes.set(title=name, xlabel="step", ylabel="loss in nats a byte, mean of ten steps")
        axes.legend()
    figure.suptitle(where, fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of losses.json and losses.png")
    parser.add_argument("--models", default=",".join(LR), help="some of %(default)s")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4, help="rows of a step; the demo always has 8")
    parser.add_argument("--length", type=int, default=256, help="bytes of a row")
    chosen = parser.parse_args()
    names = chosen.models.split(",")
    if unknown := [name for name in names if name not in LR]:
        parser.error(f"--models {unknown[0]} is unknown; use some of {', '.join(LR)}")
    found = {}
    for name in names:
        found[name] = compare(name, chosen.steps, batch=8 if name == "demo" else chosen.batch, length=chosen.length)
    where = describe_processor(processor())
    chosen.folder.mkdir(parents=True, exist_ok=True)
    write_json(chosen.folder / "losses.json", {"processor": where, "steps": chosen.steps, "models": found})
    draw(found, where, chosen.folder / "losses.png")


if __name__ == "__main__":
    main()
