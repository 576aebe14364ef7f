"""What memory a run will take, found without taking it, and the refusal of a run that cannot fit."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from statewise.checkpoints.empty import build_empty
from statewise.errors import ConfigError
from statewise.models.base import Model
from statewise.train.config import ParallelConfig, RunConfig
from statewise.train.environment import autocast, choose_device
from statewise.train.memory_available import available_memory
from statewise.train.tasks import Table, Task, open_task

MOMENTS = 2  # of AdamW, for each parameter
LOOKED_AT = 8  # batches, of which the largest counts where the rows have lengths of their own
# No layer makes more numbers for a token than this times the rows and columns of all parameters together, by far.
NUMBERS_PER_WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process of several has of a run.

    data, sequence: so many share the rows of a batch; each row, a piece in time each
    tensor:         so many share the matrices of each layer
    sharded:        so many hold everything together, with its gradients and moments (FSDP)
    on_machine:     so many share the memory of one machine
    """

    data: int = 1
    sequence: int = 1
    tensor: int = 1
    sharded: int = 1
    on_machine: int = 1

    @classmethod
    def of(cls, config: ParallelConfig, n_ranks: int) -> Share:
        """As ``ParallelConfig`` divides a run among so many processes; torchrun tells how many are on this machine."""
        parts = max(1, n_ranks // config.tensor)
        return cls(
            data=max(1, parts // config.sequence),
            sequence=config.sequence,
            tensor=config.tensor,
            sharded=parts if config.data == "fsdp" else 1,
            on_machine=int(os.environ.get("LOCAL_WORLD_SIZE", n_ranks)) if n_ranks > 1 else 1,
        )


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes of the tensors of a run in one process, and how many are free.

    parameters: with buffers   gradients, moments: of all parameters, the moments AdamW's
    activations: what is kept of the forward pass of a micro-batch for its backward pass
    temporary:  what the most at one time has beyond these
    peak:       the most at one time. The others are not all there at once, so it may be less than their sum
    begin:      of several processes that divide a model, each one's share of the whole that rank 0 draws
    save:       of the same, the largest tensor twice: as its parts arrive, and put together to be written
    """

    device: str
    parameters: int
    gradients: int
    moments: int
    activations: int
    temporary: int
    peak: int
    available: int | None
    begin: int = 0
    save: int = 0

    @property
    def fits(self) -> bool:
        return self.available is None or self.peak <= self.available

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "fits": self.fits}

    def table(self) -> Table:
        """For a terminal; ``record`` is the same as data."""
        names = ("parameters", "gradients", "moments", "activations", "temporary")
        notes = [
            "tensors of one micro-batch of training; the parts are not all there at one time",
            "libraries, the allocator's gaps, evaluation and data come on top",
        ]
        if not self.fits:
            notes.append("this run does not fit")
        free = "not known" if self.available is None else size(self.available)
        rows = [(name, size(getattr(self, name))) for name in names]
        if self.save:
            if self.begin:
                rows.append(("share of the beginning", size(self.begin)))
                notes.append("rank 0 draws the whole model, before each process takes its part of it")
            rows.append(("to save", size(self.save)))
        rows.append(("at the peak", size(self.peak)))
        return Table(f"memory of a training step on {self.device}", ("", ""), [*rows, ("free now", free)], tuple(notes))


def estimate_memory(config: RunConfig, task: Task[Any, Any] | None = None, *, n_ranks: int = 1) -> MemoryEstimate:
    """The memory of a step of this run, found by going through one without numbers (see rehearsal.py).

    task:    the run's, where it is open already
    n_ranks: processes that train one model together, of which the estimate is of one

    Cost:     the shapes of a step are followed operation by operation: a tenth of a second for a small model to some
              seconds for a layer that steps through time in Python; next to no memory. PyTorch's generators are left as
              they are.
    Numerics: tensors are counted to the byte, in float32 to within about 5 % of the resident memory that a step adds
              where the system's allocator gives freed blocks back at once, as it does above 32 MiB. Smaller ones leave
              gaps: a model of a few hundred megabytes may take half as much again. In bfloat16 oneDNN copies weights on
              top. Compiled code is taken for what it was compiled from. Of several processes FSDP's gathered layers are
              counted as three of the largest, and activations as if tensor parallelism did not divide them; on a
              CPU the gaps may then be several times the rest (see docs/distributed.md). Rank 0 draws the whole model:
              on a CPU every process of its machine counts a share of that, on a GPU it lies in the machine's memory
              and is not counted.
    Errors:   ConfigError, DataError as the run itself; ConfigError for a model whose way depends on its numbers.
    """
    task = open_task(config) if task is None else task
    device, share = choose_device(config.train.device), Share.of(config.train.parallel, n_ranks)
    return _rehearse(config, task, build_empty(config.model), _largest_batch(task, share), device, share)


def require_memory(config: RunConfig, task: Task[Any, Any], *, copies: int = 1, n_ranks: int = 1) -> None:
    """Refuses a run that cannot fit into what is free, before it starts. Call it before its model is built.

    copies:  of the model, for runs that are trained side by side
    n_ranks: processes that train one model together

    Where a bound from the shapes of the parameters alone says that it fits, nothing is followed, so that a small run
    starts as fast as ever. ``train.check_memory=false`` lets any run start. Where the system does not say what is
    free, or what would be needed cannot be found without computing, nothing is refused.

    Errors: ConfigError, with the bytes needed and free, and what to change.
    """
    if not config.train.check_memory:
        return
    device, share = choose_device(config.train.device), Share.of(config.train.parallel, n_ranks)
    available = _available(device, share)
    if available is None:
        return
    model, batch = build_empty(config.model), _largest_batch(task, share)
    if copies * _bound(model, batch) <= available:
        return
    try:
        found = _rehearse(config, task, model, batch, device, share)
    except _Unknown:
        return
    if copies * found.peak <= available:
        return
    raise ConfigError(_refusal(config, found, copies, n_ranks, available))


class _Unknown(ConfigError):
    """The way of the computation depends on numbers that a rehearsal does not have."""


def _rehearse(
    config: RunConfig, task: Task[Any, Any], model: Model, batch: Any, device: torch.device, share: Share
) -> MemoryEstimate:
    """A micro-batch, forwards and backwards; ``model`` is of no use afterwards."""
    from statewise.train.rehearsal import rehearsing  # which imports PyTorch's compiler: a second's work

    train = config.train
    layers = [sum(_n_bytes(p) for p in block.parameters() if p.requires_grad) for block in model.blocks]
    largest = max((_n_bytes(p) for p in model.parameters()), default=0)
    model.train()
    model.gradient_checkpointing = train.gradient_checkpointing
    try:
        with torch.random.fork_rng(devices=[]), rehearsing(device) as rehearsal:
            rehearsal.imagine_parameters(model)
            parameters = rehearsal.live
            trained = sum(_n_bytes(p) for p in model.parameters() if p.requires_grad)
            if train.accumulation > 1:  # all but the first find the gradients of those before
                for parameter in model.parameters():
                    parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            batch = tree_map(lambda leaf: rehearsal.imagine(leaf) if isinstance(leaf, Tensor) else leaf, batch)
            state = task.initial_state(model) if train.carry_state else None
            before = rehearsal.live
            with autocast(train, device):
                loss, state = task.loss(model, batch, state)
            activations = rehearsal.live - before
            loss.backward()
            peak = rehearsal.peak
    except Exception as error:  # whatever code does to whom a number is missing
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _Unknown(f"the memory of this run cannot be estimated: {reason}") from error
    rest = max(0, peak - parameters - trained - activations)
    whole, divided = parameters, share.tensor * share.sharded > 1
    if divided:  # what is in no layer, such as the embedding, is whole on each tensor-parallel rank
        in_layers = sum(layers)
        spared = in_layers - in_layers / share.tensor
        parameters, trained = (round((n - spared) / share.sharded) for n in (parameters, trained))
    moments, begin, save = MOMENTS * trained, 0, 0
    if divided:
        gathered = 3 * max(layers, default=0) if share.sharded > 1 else 0
        begin = whole // share.on_machine if device.type == "cpu" else 0
        save = 2 * largest
        step = parameters + trained + moments + activations + rest + gathered
        most = max(step, parameters + largest + begin, parameters + moments + save)
    else:
        most = moments + max(peak, parameters + trained)
    return MemoryEstimate(
        device=device.type,
        parameters=parameters,
        gradients=trained,
        moments=moments,
        activations=activations,
        temporary=rest,
        peak=most,
        available=_available(device, share),
        begin=begin,
        save=save,
    )


def _available(device: torch.device, share: Share) -> int | None:
    free = available_memory(device)
    return free if free is None or device.type == "cuda" else free // share.on_machine


def _largest_batch(task: Task[Any, Any], share: Share) -> Any:
    """The first micro-batch, or the largest of the first few where they differ, and of it what one process reads."""
    batch = task.batches[0]
    if getattr(batch, "lengths", None) is not None:
        several = (task.batches[step] for step in range(min(LOOKED_AT, task.batches.steps_per_epoch)))
        batch = max(several, key=_n_numbers)
    return tree_map(lambda leaf: _part(leaf, share) if isinstance(leaf, Tensor) else leaf, batch)


def _part(leaf: Tensor, share: Share) -> Tensor:
    leaf = leaf[: -(-leaf.shape[0] // share.data)] if leaf.ndim else leaf
    return leaf[:, : -(-leaf.shape[1] // share.sequence)] if leaf.ndim > 1 else leaf


def _bound(model: Model, batch: Any) -> int:
    """Bytes that the run does not exceed, by far, from the shapes of the parameters; nothing is followed."""
    tables = [*model.parameters(), *model.buffers()]
    widths = sum(sum(table.shape) for table in tables)
    numbers = 4 * (2 + MOMENTS) * sum(table.numel() for table in tables)
    return 4 * (numbers + NUMBERS_PER_WIDTH * widths * _n_numbers(batch))


def _n_numbers(batch: Any) -> int:
    return max((leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), default=0)


def _n_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
    for n in range(2, train.batch_size + 1):  # a smaller micro-batch, as many rows in a step as before
        if train.batch_size % n == 0 and train.batch_size // n % Share.of(train.parallel, n_ranks).data == 0:
            fitting = what_fits(batch_size=train.batch_size // n, accumulation=train.accumulation * n)
            advice += fitting
            if fitting:
                break
    if not advice and not train.gradient_checkpointing:
        advice = what_fits(
            batch_size=1, accumulation=train.accumulation * train.batch_size, gradient_checkpointing=True
        )
    return (
        f"the run needs {size(copies * found.peak)} of memory, and {size(available)} are free on {found.device} "
        f"({parts}{several}); use {' or '.join(advice or ['a smaller model'])}, or train.check_memory=false to begin "
        "all the same"
    )


def size(n_bytes: int) -> str:
    """Bytes for people: "1.5 GB"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.3g} {unit}" if n_bytes < 1000 * factor else f"{n_bytes / factor:,.0f} {unit}"
    return f"{n_bytes:,} bytes"
