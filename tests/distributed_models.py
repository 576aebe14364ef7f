"""Small runs for the cases of several ranks, and what a single process makes of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from distributed_harness import Place
from training_runs import small_model, small_run, with_train

from statewise.mixers.attention import AttentionConfig
from statewise.mixers.channel_mix import ChannelMixConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.rwkv7 import RWKV7Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.training import RunConfig
from statewise.training.config import ParallelConfig
from statewise.training.distributed.several import SeveralRanks
from statewise.training.ranks import Ranks
from statewise.training.run_folder import RunFolder
from statewise.training.run_state import RunState
from statewise.training.update import loss_function, update

MAMBA2 = Mamba2Config(d_state=8, d_head=8, chunk_length=8)
RWKV7 = RWKV7Config(d_head=8, decay_rank=4, rate_rank=4, gate_rank=4)
ATTENTION = AttentionConfig(n_heads=4, n_kv_heads=2)
MIXERS: dict[str, tuple[Any, ...]] = {
    "mamba": (MambaConfig(d_state=4),) * 2,
    "mamba2": (MAMBA2,) * 2,
    "s4d": (S4DConfig(d_state=8),) * 2,
    "h3": (H3Config(d_state=8, d_head=4),) * 2,
    "rwkv7": (RWKV7, ChannelMixConfig(expand=2), replace(RWKV7, value_rank=4)),
    "hybrid": (
        BlockConfig(mixer=MAMBA2, mlp=MLPConfig(expand=2)),
        BlockConfig(mixer=ATTENTION, mlp=MLPConfig(expand=2, gated=True)),
        MAMBA2,
    ),
}
N_STEPS = 3
TOLERANCE = 1e-5


def a_run(place: Place, model: str = "mamba2", **train: Any) -> RunConfig:
    """Four rows in a batch, so that two and four ranks can share it; no dropout, whose numbers would be others."""
    if place.rank == 0:
        run = small_run(place.folder)  # writes the text
    dist.barrier()
    layers = tuple(layer for layer in MIXERS[model])
    settings: dict[str, Any] = {"batch_size": 4, "steps": 8, "length": 16, "lr": 1e-2}
    settings |= {"evaluate_minutes": None, "evaluate_items": 64}
    run = small_run(place.folder, model=small_model(d_model=16, layers=layers), **{**settings, **train})
    return run


def parallel(run: RunConfig, **how: Any) -> RunConfig:
    return with_train(run, parallel=ParallelConfig(**how))


def steps(place: Place, run: RunConfig, ranks: Ranks, n: int = N_STEPS) -> tuple[list[tuple[float, float]], RunState]:
    """The losses and the gradients' norms of the first steps, without a folder; and where they led."""
    state = RunState(RunFolder(place.folder / "nowhere", run), ranks=ranks)
    eager = loss_function(state)
    loss_of = ranks.loss_function(eager)
    return [update(state, run.train.optimizer.lr, loss_of, eager) for _ in range(n)], state


def single(place: Place, run: RunConfig) -> list[tuple[float, float]]:
    """The same in one process: rank 0 computes it, once for all cases and worlds."""
    alone = parallel(run)
    file = place.folder / f"single-{hashlib.sha256(repr(alone).encode()).hexdigest()}.json"
    if place.rank == 0 and not file.exists():
        file.write_text(json.dumps(steps(place, alone, Ranks())[0]))
    dist.barrier()
    return [(loss, norm) for loss, norm in json.loads(file.read_text())]


def together(place: Place, run: RunConfig, **how: Any) -> RunState:
    """Trains on all ranks and compares each step with the single process; gives where it led."""
    expected = single(place, run)
    found, state = steps(place, parallel(run, **how), SeveralRanks())
    require_close(found, expected)
    return state


def require_close(found: Sequence[tuple[float, float]], expected: Sequence[tuple[float, float]]) -> None:
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected)):
        for what, a, b in zip(("loss", "norm"), one, other):
            assert math.isclose(a, b, rel_tol=TOLERANCE), f"step {number + 1}: {what} is {a}, one process has {b}"
