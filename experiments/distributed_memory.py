"""What each process of a training holds when it begins, steps, saves and goes on, beside the bytes of the model.

    export OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=65536
    torchrun --nproc-per-node 4 experiments/distributed_memory.py --data fsdp --text TEXT
    torchrun --nproc-per-node 4 experiments/distributed_memory.py --data ddp --text TEXT --output F.json

Anonymous memory (not the pages of files, which the system takes back as it needs them) above that before, at its most,
looked at every millisecond: of rank 0, and of the worst of the others. Without MALLOC_MMAP_THRESHOLD_ what glibc's
allocator keeps counts as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

import statewise as sw
from statewise.checkpoints.empty import build_empty
from statewise.data.text import TextDataConfig
from statewise.reproduce.hardware import environment
from statewise.training import RunConfig
from statewise.training.config import BudgetConfig, ParallelConfig, TrainConfig
from statewise.training.distributed.several import SeveralRanks
from statewise.training.memory_estimate import estimate_memory
from statewise.training.run_state import RunState
from statewise.training.update import loss_function, update

STATUS = Path("/proc/self/status")


def anonymous() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def raised_by(work: Callable[[], object]) -> int:
    """Bytes of anonymous memory at the most while it works, above those before."""
    gc.collect()
    before, done = anonymous(), threading.Event()
    most = before

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(most, anonymous()) - before


class Phases:
    """Begins, steps and saves a run, then goes on from what was saved.

    raised: the bytes by which each raised this rank's memory
    """

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.run, self.ranks, self.raised = run, SeveralRanks(), dict[str, int]()
        with self.ranks.open_run(folder, run, resume=False) as self.opened:
            self.raised["begin"] = raised_by(self.build)
            self.ranks.by_first(self.opened.write_config)
            self.loss = loss_function(self.state)
            self.raised["step"] = raised_by(self.step)
            self.raised["save"] = raised_by(lambda: self.state.save(lambda: None))
        del self.state, self.loss
        self.ranks = SeveralRanks()  # DDP's buffers go with the old ones
        with self.ranks.open_run(folder, run, resume=True) as self.opened:
            self.raised["go on"] = raised_by(self.build)

    def build(self) -> None:
        self.state = RunState(self.opened, ranks=self.ranks)

    def step(self) -> None:
        update(self.state, self.run.train.optimizer.lr, self.ranks.loss_function(self.loss), self.loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["ddp", "fsdp"], default="fsdp")
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--text", required=True, help="a text of some kilobytes or more")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = sw.LanguageModelConfig(
        vocab_size=257, d_model=arguments.width, layers=(sw.Mamba2Config(),) * arguments.layers
    )
    parallel = ParallelConfig(data=arguments.data, tensor=arguments.tensor)
    budget = BudgetConfig(steps=2)
    train = TrainConfig(budget=budget, batch_size=size, length=16, device="cpu", parallel=parallel, check_memory=False)
    run = RunConfig(model=model, data=TextDataConfig(source=arguments.text), train=train)
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    n_bytes = sum(4 * p.numel() for p in build_empty(model).parameters())
    estimate = estimate_memory(run, n_ranks=size)

    each: list[Any] = [None] * size
    dist.all_gather_object(each, Phases(run, Path(folder[0]) / "run").raised)
    if rank == 0:
        shutil.rmtree(folder[0])
        others = each[1:] or each
        figures = {
            "model_bytes": n_bytes,
            "rank_0": {name: value / n_bytes for name, value in each[0].items()},
            "others": {name: max(found[name] for found in others) / n_bytes for name in each[0]},
            "estimated": {name: value for name, value in asdict(estimate).items() if name != "available"},
        }
        settings = {name: value for name, value in vars(arguments).items() if name not in ("output", "text")}
        print(
            f"{size} processes, {arguments.data}, tensor={arguments.tensor}, a model of {n_bytes:,} bytes; in models:"
        )
        print(f"{'':8}{'rank 0':>8}{'others':>8}")
        for name in each[0]:
            print(f"{name:8}{figures['rank_0'][name]:8.2f}{figures['others'][name]:8.2f}")
        print(f"the estimate of the most a process holds: {estimate.peak / n_bytes:.2f}")
        if arguments.output is not None:
            record = {"processes": size, **settings, **figures, **environment()}
            arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
