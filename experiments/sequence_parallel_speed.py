"""A training step on one long row: one process that reads it all, beside processes that read a piece each.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 experiments/sequence_parallel_speed.py
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 experiments/sequence_parallel_speed.py --length 262144 --output F.json

With n layers and P processes the pieces take (n + P - 1) / (n P) of the time at best. Both sides give the same loss.
Needs a core for each process that nothing else uses: a process that is kept waiting keeps all others waiting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import statewise as sw
from statewise.reproduce.hardware import environment
from statewise.training.distributed.sequence import apply_sequence_parallel
from statewise.training.tasks.language import token_loss

MIXERS = {
    "mamba": sw.MambaConfig(),
    "mamba2": sw.Mamba2Config(),
    "h3": sw.H3Config(),
    "attention": sw.AttentionConfig(n_heads=4),
}


def median_seconds(step: Callable[[], object], repeats: int) -> float:
    """Of the slowest rank, which all others wait for; after one step uncounted."""
    found = []
    for repeat in range(repeats + 1):
        dist.barrier()
        begun = time.perf_counter()
        step()
        seconds = torch.tensor(time.perf_counter() - begun)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if repeat:
            found.append(float(seconds))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixer", choices=list(MIXERS), default="mamba2")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if arguments.length % size:
        parser.error(f"--length {arguments.length} does not divide among {size} processes")
    torch.manual_seed(0)
    layers = (MIXERS[arguments.mixer],) * arguments.layers
    model = sw.LanguageModelConfig(vocab_size=256, d_model=arguments.width, layers=layers).build()
    tokens = torch.randint(256, (1, arguments.length + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    own = slice(rank * arguments.length // size, (rank + 1) * arguments.length // size)
    pieces = apply_sequence_parallel(model)
    losses = {}

    def step(name: str, here: slice, n_parts: int) -> None:
        features, _ = model.features(inputs[:, here])
        loss = token_loss(model, features, targets[:, here]) / n_parts
        loss.backward()
        losses[name] = loss.detach()
        for parameter in model.parameters():
            parameter.grad = None

    def whole() -> None:
        if rank == 0:
            step("whole", slice(None), 1)

    with pieces.disabled():
        alone = median_seconds(whole, arguments.repeats)
    together = median_seconds(lambda: step("pieces", own, size), arguments.repeats)
    dist.all_reduce(losses["pieces"])
    if rank == 0:
        record = {
            **{name: value for name, value in vars(arguments).items() if name != "output"},
            "processes": size,
            "seconds_alone": alone,
            "seconds_together": together,
            "ratio": alone / together,
            "ratio_at_best": arguments.layers * size / (arguments.layers + size - 1),
            "loss_difference": float(losses["pieces"] - losses["whole"]),
            **environment(),
        }
        print(json.dumps(record, indent=2))
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
