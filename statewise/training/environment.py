"""What a run sets in its process: the device, the threads, the precision of products, the random generators."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from statewise.errors import ConfigError
from statewise.kernels.exact import exact
from statewise.precision import fast_projections
from statewise.training.config import DEVICES, TrainConfig


def choose_device(name: str) -> torch.device:
    """The device that ``TrainConfig.device`` stands for: "auto" is CUDA where there is one.

    Errors: ConfigError for an unknown name, and if CUDA is asked for by name and is not there.
    """
    if name not in DEVICES:
        raise ConfigError(f"device={name!r} is unknown; use one of {', '.join(DEVICES)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device="cuda", but PyTorch finds no CUDA device here; use "auto" or "cpu"')
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def require_threads(name: str, threads: int | None) -> None:
    """ConfigError for more threads than eight for each core: with very many, the process crashes."""
    most = 8 * (os.cpu_count() or 128)
    if threads is not None and threads > most:
        raise ConfigError(f"{name}{threads} is out of range; expected at most {most}, eight for each core here")


@contextmanager
def process_settings(config: TrainConfig) -> Iterator[None]:
    """The number of threads, the precision of projections and exact mode, put back as they were at the end.

    Within it Python's garbage collector leaves alone what was there before: hundreds of thousands of objects of
    imported modules, which it would otherwise walk through every few steps, a tenth of the time of a small model.

    Errors: ConfigError as :func:`require_threads`.
    """
    require_threads("TrainConfig.threads=", config.threads)
    threads = torch.get_num_threads()
    freezes = gc.get_freeze_count() == 0
    try:
        if freezes:
            gc.freeze()
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        with fast_projections() if config.matmul == "fast" else nullcontext(), exact(config.exact):
            yield
    finally:
        if freezes:
            gc.unfreeze()
        if config.threads is not None:
            torch.set_num_threads(threads)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 products where the configuration asks for them."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def multiplies_bfloat16() -> bool:
    """Whether a run of here computes on a processor with products in bfloat16 (AVX512-BF16 or AMX). Others imitate
    them, slower than in float32."""
    if torch.cuda.is_available():
        return False
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16"))


def seed_generators(seed: int) -> None:
    """PyTorch's, Python's and numpy's global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
