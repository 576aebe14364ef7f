"""A run under torchrun's agent whose ranks are killed: by test_distributed*.py and experiments/kill_ranks.py.

    python distributed_killed.py FOLDER N_RANKS KILLS       KILLS: JSON, [[rank, "step" or "save", number], ...]

The agent is torchrun's own (``elastic_launch``), its workers are forked from this process, so that a restart costs no
start of Python. In attempt i the rank of the i-th entry kills itself with SIGKILL: after so many of the steps of this
attempt, or at so many of the calls by which rank 0 saves (fsync, rename, replace, unlink and so on). Where another rank
than 0 is to die in a save, rank 0 waits for it. The process above a worker is another one in each attempt, as it is
where a script stands between torchrun and Python. Prints the checkpoints that were there before each attempt as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # so that no worker imports it
from distributed_models import MAMBA2
from killed_runs import CALLS, is_usable
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from training_runs import small_model, small_run

from statewise.training import RunConfig, course, train_run
from statewise.training.config import ParallelConfig
from statewise.training.distributed import several  # noqa: F401 (so that no worker imports it)


def killed_config(folder: Path, data: str, n_steps: int) -> RunConfig:
    """Saves after every second step; nothing in it depends on the clock."""
    return small_run(
        folder,
        model=small_model(d_model=16, layers=(MAMBA2, MAMBA2), dropout=0.0),
        batch_size=4,
        steps=n_steps,
        save_every=2,
        evaluate_every=5,
        evaluate_minutes=None,
        parallel=ParallelConfig(data=data),
    )


def work(folder: str, data: str, n_steps: int, kills: list[tuple[int, str, int]]) -> int:
    torch.set_num_threads(1)
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    os.getppid = lambda: -1 - attempt
    run = Path(folder, "killed")
    if rank == 0:
        step = is_usable(run) if (run / "run.json").exists() else 0
        Path(folder, f"attempt-{attempt}").write_text(str(step))
    if attempt < len(kills):
        arrange(*kills[attempt], rank, Path(folder, f"dead-{attempt}"))
    return train_run(killed_config(Path(folder), data, n_steps), run).step


def arrange(victim: int, where: str, number: int, rank: int, sign: Path) -> None:
    """Lets this rank die, or wait for the one that does."""
    left = number

    def die() -> None:
        sign.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "step" and rank == victim:
        log = course.Course.log

        def log_and_die(self: Any, record: Any, done: bool) -> None:
            nonlocal left
            log(self, record, done)
            left -= 1
            if left <= 0:
                die()

        course.Course.log = log_and_die  # type: ignore[method-assign]
    if where == "save":
        save = course.Course.save

        def save_and_die(self: Any) -> None:
            if rank == 0:
                count_calls()
            elif rank == victim:
                time.sleep(0.001 * number)
                die()
            save(self)

        def count_calls() -> None:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))

        def counted(function: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    if victim == 0:
                        die()
                    while not sign.exists():
                        time.sleep(0.001)
                return function(*args, **kwargs)

            return wrapper

        course.Course.save = save_and_die  # type: ignore[method-assign]


def main(folder: Path, n_ranks: int, kills: list[tuple[int, str, int]], data: str = "fsdp", n_steps: int = 12) -> None:
    small_run(folder)  # writes the text
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n_ranks,
        max_restarts=len(kills),
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"kills-{os.getpid()}",
        monitor_interval=0.05,
    )
    steps = elastic_launch(config, work)(str(folder), data, n_steps, kills)
    before = [int((folder / f"attempt-{i}").read_text()) for i in range(len(kills) + 1)]
    dead = [(folder / f"dead-{i}").exists() for i in range(len(kills))]
    print(json.dumps({"steps": sorted(steps.values()), "before": before, "dead": dead}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [tuple(kill) for kill in json.loads(sys.argv[3])])
