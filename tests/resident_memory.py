"""Run as a script: reads pickled RunConfigs, prints how many bytes one micro-batch of each adds to the resident memory.

Each is measured in a process of its own, forked from one that has imported and computed nothing.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from typing import Any

import torch
from torch.utils._pytree import tree_map

from statewise.benchmark.memory import raised_by
from statewise.training import RunConfig
from statewise.training.environment import autocast
from statewise.training.tasks import open_task

M_MMAP_THRESHOLD = -3  # of glibc's mallopt


def give_back_at_once(from_bytes: int = 1 << 16) -> None:
    """Freed memory, of blocks as large as this: what lies in an allocator's gaps is not what is measured."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, from_bytes)


def resident(config: RunConfig) -> int:
    torch.set_num_threads(1)
    give_back_at_once()
    task, model = open_task(config), config.model.build().train()
    model.gradient_checkpointing = config.train.gradient_checkpointing

    def step(batch: Any) -> torch.Tensor:
        with autocast(config.train, torch.device("cpu")):
            loss, _ = task.loss(model, batch, None)
        loss.backward()
        return loss.detach()

    batch = task.batches[0]
    step(tree_map(lambda leaf: leaf[:1, :64], batch))  # what is loaded on first use does not count
    model.zero_grad(set_to_none=True)
    return raised_by(lambda: step(batch))[0]


if __name__ == "__main__":
    for config in pickle.load(sys.stdin.buffer):
        child = os.fork()
        if child == 0:
            print(resident(config), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
