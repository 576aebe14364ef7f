"""The refusal of a run that cannot fit into the memory that is free, before it starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

from statewise.errors import ConfigError
from statewise.memory import size
from statewise.models.base import Model
from statewise.training.config import OptimizerConfig, RunConfig
from statewise.training.environment import choose_device
from statewise.training.memory_estimate import (
    MOMENTS,
    MemoryEstimate,
    Share,
    UnknownError,
    available_to,
    by_muon,
    estimate_memory,
    largest_batch,
    n_bytes,
    n_numbers,
    rehearse,
    shapes_of,
)
from statewise.training.tasks import Task

# No layer makes more numbers for a token than this times the rows and columns of all parameters together, by far.
NUMBERS_PER_WIDTH = 256


def require_memory(config: RunConfig, task: Task[Any, Any], *, copies: int = 1, n_ranks: int = 1) -> None:
    """Refuses a run that cannot fit into what is free, before it starts. Call it before its model is built.

    copies:  of the run, which are trained at once in processes of their own
    n_ranks: processes that train one model together

    Where a bound from the shapes of the parameters alone says that it fits, nothing is followed, so that a small run
    starts as fast as ever. ``train.check_memory=false`` lets any run start. Where the system does not say what is
    free, or what would be needed cannot be found without computing, nothing is refused.

    Errors: ConfigError, with the bytes needed and free, and what to change.
    """
    if not config.train.check_memory:
        return
    device, share = choose_device(config.train.place), Share.of(config.train.parallel, n_ranks)
    available = available_to(device, share)
    if available is None:
        return
    model, batch = shapes_of(config.model), largest_batch(task, share)
    if copies * _bound(model, batch) <= available:
        return
    least = copies * _least(model, config.train.optimizer)
    if share.tensor * share.sharded == 1 and least > available:
        raise ConfigError(_hopeless(model, device, copies, least, available))
    try:
        found = rehearse(config, task, model, batch, device, share)
    except UnknownError:
        return
    if copies * found.peak <= available:
        return
    raise ConfigError(_refusal(config, found, copies, n_ranks, available))


def _bound(model: Model, batch: Any) -> int:
    """Bytes that the run does not exceed, by far, from the shapes of the parameters; nothing is followed."""
    tables = [*model.parameters(), *model.buffers()]
    widths = sum(sum(table.shape) for table in tables)
    numbers = 4 * (2 + MOMENTS) * sum(table.numel() for table in tables)
    return 4 * (numbers + NUMBERS_PER_WIDTH * widths * n_numbers(batch))


def _least(model: Model, config: OptimizerConfig) -> int:
    """Bytes without which no step can be: those of the parameters, their gradients and moments."""
    by_adamw = sum((1 + (1 + MOMENTS) * p.requires_grad) * n_bytes(p) for p in model.parameters())
    return by_adamw - sum(by_muon(model, config))


def _hopeless(model: Model, device: torch.device, copies: int, least: int, available: int) -> str:
    parameters = size(sum(map(n_bytes, model.parameters())))
    several = f" for each of {copies} runs" if copies > 1 else ""
    return (
        f"the run needs {size(least)} of memory for its parameters ({parameters}{several}), their "
        f"gradients and moments alone, and {size(available)} are free on {device.type}; use a smaller model, or "
        "train.check_memory=false to begin anyway"
    )


def _refusal(config: RunConfig, found: MemoryEstimate, copies: int, n_ranks: int, available: int) -> str:
    train = config.train
    names = ("parameters", "gradients", "moments", "activations", "temporary")
    parts = ", ".join(f"{name} {size(getattr(found, name))}" for name in names)
    if found.save:
        begin = f", share of the beginning {size(found.begin)}" if found.begin else ""
        parts += f"{begin}, to save {size(found.save)}"
    several = f", for each of {copies} runs" if copies > 1 else ""

    def what_fits(**changes: Any) -> list[str]:
        other = replace(config, train=replace(train, **changes))
        needed = copies * estimate_memory(other, n_ranks=n_ranks).peak
        fields = " with ".join(f"train.{name}={json.dumps(value)}" for name, value in changes.items())
        return [f"{fields} ({size(needed)})"] if needed <= available else []

    advice = [] if train.gradient_checkpointing else what_fits(gradient_checkpointing=True)
    smaller = range(2, train.batch_size + 1) if train.drop_last else ()  # a smaller micro-batch, as many rows in a step
    for n in smaller:
        if train.batch_size % n == 0 and train.batch_size // n % Share.of(train.parallel, n_ranks).data == 0:
            fitting = what_fits(batch_size=train.batch_size // n, accumulation=train.accumulation * n)
            advice += fitting
            if fitting:
                break
    if not advice and not train.gradient_checkpointing and train.drop_last:
        advice = what_fits(
            batch_size=1, accumulation=train.accumulation * train.batch_size, gradient_checkpointing=True
        )
    return (
        f"the run needs {size(copies * found.peak)} of memory, and {size(available)} are free on {found.device} "
        f"({parts}{several}); use {' or '.join(advice or ['a smaller model'])}, or train.check_memory=false to begin "
        "anyway"
    )
