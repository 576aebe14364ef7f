"""kill -9 at random moments of training, half of them inside a save: is a folder ever lost, or a number changed?

    python experiments/kill_training.py                    200 kills, some minutes
    python experiments/kill_training.py --kills 10 --seed 1 --output kills.json

Runs of two kinds are trained in child processes that are killed again and again, each going on where the one before
was killed. After every kill all that the folder holds is read as anybody would read it. A run that has been killed
often enough is gone on with to its end, and then has to have the metrics and the tensors of one that nobody disturbed,
bit for bit. Children are forked from one process that has imported everything, so that a start costs a tenth of a
second. The seed decides when the kills are tried; a kill counts as inside a save if the child had begun one and not
ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # so that no child imports it

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from killed_runs import in_child, is_usable
from training_runs import curve, small_model, small_run

from statewise import checkpoints
from statewise.mixers.attention import AttentionConfig
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.hardware import environment
from statewise.training import RunConfig, train_run
from statewise.training.report import Reporter
from statewise.training.run_state import RunState

STEPS = 120
KILLS_OF_A_RUN = 20
STARTED, STEP, SAVING, SAVED = b"o", b".", b"(", b")"


def configs(folder: Path, steps: int) -> dict[str, RunConfig]:
    """Two kinds of runs: windows of a text with dropout, and streams of it whose state is carried on."""
    settings: dict[str, Any] = {"steps": steps, "save_every": 2, "evaluate_every": 7, "accumulation": 2, "threads": 1}
    mamba = small_model(dropout=0.2).layers[0]
    attention = BlockConfig(mixer=AttentionConfig(n_heads=2, window=6), mlp=MLPConfig(expand=2), dropout=0.2)
    return {
        "windows": small_run(folder, **settings),
        "streams": small_run(
            folder, model=small_model(layers=(mamba, attention)), carry_state=True, keep_last=1, **settings
        ),
    }


class Child:
    """A process that trains, and says through a pipe what it is doing."""

    def __init__(self, config: RunConfig, run: Path) -> None:
        self._reading, writing = os.pipe()
        self.said = b""

        def work() -> None:
            os.close(self._reading)
            train_run(config, run, resume=run.exists(), reporter=_telling(writing))

        self.process = in_child(work)
        os.close(writing)

    def hear(self, what: bytes, times: int, seconds: float = 60.0) -> bool:
        """Waits until it has said something so often; False if it ended before."""
        until = time.monotonic() + seconds
        while self.said.count(what) < times:
            if not select.select([self._reading], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"the child said {self.said!r} and nothing more")
            more = os.read(self._reading, 4096)
            if not more:
                return False
            self.said += more
        return True

    def kill(self) -> int:
        """What it ended with: 9, or 0 if it was faster. Hears the rest."""
        os.kill(self.process, signal.SIGKILL)
        return self.end()

    def end(self) -> int:
        while more := os.read(self._reading, 4096):
            self.said += more
        os.close(self._reading)
        return os.waitpid(self.process, 0)[1]

    @property
    def was_saving(self) -> bool:
        return self.said.count(SAVING) > self.said.count(SAVED)


def _telling(writing: int) -> Reporter:
    """Tells of steps and saves. Within a child, whose classes are its own."""
    save = RunState.save

    def telling_save(self: RunState, *arguments: Any, **options: Any) -> Path:
        os.write(writing, SAVING)
        path = save(self, *arguments, **options)
        os.write(writing, SAVED)
        return path

    RunState.save = telling_save  # type: ignore[method-assign]

    class Telling(Reporter):
        def event(self, record: Any) -> None:
            if record["kind"] == "start":
                os.write(writing, STARTED)

        def progress(self, fraction: float, record: Any) -> None:
            os.write(writing, STEP)

    return Telling()


@dataclass
class Log:
    """What happened, in the end as JSON."""

    kills: int = 0
    inside_save: int = 0
    before_first_step: int = 0  # while the run was being taken up
    unfinished_writes: int = 0  # kills that left hidden folders behind
    unusable: list[str] = field(default_factory=list)
    lost_checkpoints: list[str] = field(default_factory=list)  # a later look found an earlier step than one before
    runs: int = 0
    differing: list[str] = field(default_factory=list)  # runs that did not end as the undisturbed one did

    @property
    def good(self) -> bool:
        return not (self.unusable or self.lost_checkpoints or self.differing)


def look(run: Path, log: Log, at: int) -> int:
    """Reads everything in the folder; the step of the last checkpoint, ``at`` if it cannot be read."""
    try:
        step = is_usable(run)
        for found in checkpoints.list_checkpoints(run) if (run / "run.json").exists() else []:
            checkpoints.load(found.path)
            checkpoints.read_trainer(found.path)
    except Exception as error:  # that any is possible is what is looked for
        log.unusable.append(f"{run.name}, kill {log.kills}: {type(error).__name__}: {error}")
        return at
    if step < at:
        log.lost_checkpoints.append(f"{run.name}, kill {log.kills}: step {step} after step {at}")
    return step


def kill_once(config: RunConfig, run: Path, draw: random.Random, save_seconds: float, log: Log) -> bool:
    """Starts the run or takes it up, and kills it; False if it came to its end before."""
    in_save = 2 * log.inside_save <= log.kills
    child = Child(config, run)
    what, times = (SAVING, draw.randint(1, 3)) if in_save else (STEP, draw.randint(0, 4))
    child.hear(what, times)
    time.sleep(draw.uniform(0, save_seconds if in_save else 0.03))
    if child.kill() != signal.SIGKILL:
        return False
    log.kills += 1
    log.inside_save += child.was_saving
    log.before_first_step += STEP not in child.said
    log.unfinished_writes += any(path.name.startswith(".") for path in (run / "checkpoints").glob(".*"))
    return True


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoints.resolve(run, "latest")
    tensors, _ = checkpoints.read_trainer(latest)
    return {**checkpoints.load(latest).state_dict(), **tensors}


def same_end(run: Path, straight: Path) -> bool:
    one, other = tensors_of(run), tensors_of(straight)
    same_tensors = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    return curve(run) == curve(straight) and same_tensors


def experiment(
    folder: Path,
    n_kills: int,
    seed: int,
    *,
    kinds: Sequence[str] = ("windows", "streams"),
    steps: int = STEPS,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    draw, log, begun = random.Random(seed), Log(), time.monotonic()
    runs = {kind: config for kind, config in configs(folder, steps).items() if kind in kinds}
    save_seconds = {}
    for kind, config in runs.items():
        child, waits = Child(config, folder / f"straight-{kind}"), []
        while child.hear(SAVING, len(waits) + 1):
            at = time.monotonic()
            child.hear(SAVED, len(waits) + 1)
            waits.append(time.monotonic() - at)
        if child.end():
            raise RuntimeError(f"the undisturbed run of {kind} failed")
        save_seconds[kind] = sorted(waits)[len(waits) // 2]
    while log.kills < n_kills:
        kind = list(runs)[log.runs % len(runs)]
        run, step = folder / f"killed-{log.runs}-{kind}", 0
        log.runs += 1
        until = min(n_kills, log.kills + KILLS_OF_A_RUN)
        while log.kills < until and kill_once(runs[kind], run, draw, save_seconds[kind], log):
            step = look(run, log, step)
        child = Child(runs[kind], run)
        if child.end() or not same_end(run, folder / f"straight-{kind}"):
            log.differing.append(run.name)
        say(f"{log.kills} kills, {log.inside_save} inside a save, {len(log.unusable)} unusable folders")
    return {
        "kills": log.kills,
        "inside_save": log.inside_save,
        "before_first_step": log.before_first_step,
        "unfinished_writes": log.unfinished_writes,
        "runs": log.runs,
        "unusable_folders": log.unusable,
        "lost_checkpoints": log.lost_checkpoints,
        "runs_that_differ": log.differing,
        "good": log.good,
        "steps_of_a_run": steps,
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "environment": environment(),
    }


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a file for the result, as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("STATEWISE_CACHE", str(Path(folder) / "cache"))
        record = experiment(
            Path(folder), arguments.kills, arguments.seed, say=lambda line: print(line, file=sys.stderr)
        )
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    raise SystemExit(0 if record["good"] else 1)


if __name__ == "__main__":
    main()
