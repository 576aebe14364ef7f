"""What memory a run will take, found without taking it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from statewise.checkpoints.empty import build_empty, no_model
from statewise.errors import ConfigError
from statewise.memory import available_memory, size
from statewise.models.base import Model, ModelConfig
from statewise.models.shapes import TooLargeError, build_shapes
from statewise.models.through_time import MOST_KEPT
from statewise.training.config import OptimizerConfig, ParallelConfig, RunConfig
from statewise.training.environment import autocast, choose_device
from statewise.training.muon import AT_ONCE
from statewise.training.optimizer import parameter_groups
from statewise.training.tasks import Table, Task, open_task

MOMENTS = 2  # of AdamW, for each parameter; of Muon one
UPDATE = 4  # times the matrices that Muon takes together, which are whole then, at most
BEYOND = 2**50  # bytes of parameters that no machine holds: following their shapes could take for ever
LOOKED_AT = 8  # batches, of which the largest counts where the rows have lengths of their own


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process of several has of a run.

    data, sequence: how many share the rows of a batch; and each row, a piece in time each
    tensor:         how many share the matrices of each layer
    sharded:        how many hold everything together, with its gradients and moments (FSDP)
    on_machine:     how many share the memory of one machine
    """

    data: int = 1
    sequence: int = 1
    tensor: int = 1
    sharded: int = 1
    on_machine: int = 1

    @classmethod
    def of(cls, config: ParallelConfig, n_ranks: int) -> Share:
        """As ``ParallelConfig`` divides a run among ``n_ranks`` processes; torchrun says how many are on this
        machine."""
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

    parameters: with buffers   gradients, moments: of all parameters, the moments AdamW's, or Muon's one
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
            "tensors of one micro-batch of training; the parts do not all exist at the same time",
            "libraries, the allocator's gaps, evaluation and data need more on top",
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
              where the system's allocator returns freed blocks at once, as it does above 32 MiB. Smaller ones leave
              gaps: a model of a few hundred megabytes may take half as much again. In bfloat16 oneDNN copies weights on
              top. Compiled code is taken for what it was compiled from. With several processes FSDP's gathered layers
              are counted as three of the largest, and activations as if tensor parallelism did not divide them; on a
              CPU the gaps may then be several times the rest (see docs/distributed.md). Rank 0 draws the whole model:
              on a CPU every process of its machine counts a share of that, on a GPU it lies in the machine's memory
              and is not counted.
    Errors:   ConfigError, DataError as the run itself; ConfigError for a model whose way depends on its numbers, and
              for one whose parameters alone are more than a pebibyte.
    """
    if task is None:
        task = open_task(config)
        config = task.run
    device, share = choose_device(config.train.place), Share.of(config.train.parallel, n_ranks)
    model = shapes_of(config.model)
    parameters = sum(map(n_bytes, model.parameters()))
    if parameters > BEYOND:
        raise ConfigError(f"the model has {size(parameters)} of parameters, which no machine holds; use a smaller one")
    return rehearse(config, task, model, largest_batch(task, share), device, share)


def shapes_of(config: ModelConfig) -> Model:
    """The model, of which the shapes are of use and the numbers are not.

    Errors:  ConfigError for sizes that make no model.
    """
    try:
        return build_empty(config)
    except TooLargeError:
        with no_model():
            return build_shapes(config)


class UnknownError(ConfigError):
    """The way of the computation depends on numbers that a rehearsal does not have."""


def rehearse(
    config: RunConfig, task: Task[Any, Any], model: Model, batch: Any, device: torch.device, share: Share
) -> MemoryEstimate:
    """A micro-batch, forwards and backwards; ``model`` is of no use afterwards."""
    from statewise.training.rehearsal import rehearsing  # which imports PyTorch's compiler: a second's work

    train = config.train
    layers = [sum(n_bytes(p) for p in block.parameters() if p.requires_grad) for block in model.blocks]
    largest = max((n_bytes(p) for p in model.parameters()), default=0)
    matrices = by_muon(model, train.optimizer)
    update = UPDATE * max(min(sum(matrices), 4 * AT_ONCE), *matrices, 0)
    model.train()
    model.gradient_checkpointing = train.gradient_checkpointing
    try:
        with torch.random.fork_rng(devices=[]), rehearsing(device) as rehearsal:
            rehearsal.imagine_parameters(model)
            parameters = rehearsal.live
            trained = sum(n_bytes(p) for p in model.parameters() if p.requires_grad)
            if train.accumulation > 1:  # all but the first find the gradients of those before
                for parameter in model.parameters():
                    parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            batch = tree_map(lambda leaf: rehearsal.imagine(leaf) if isinstance(leaf, Tensor) else leaf, batch)
            state = task.initial_state(model) if train.carry_state else None
            states = 0
            if train.pieces > 1:
                n_pieces = task.n_pieces(batch)
                batch = task.piece(batch, 0, n_pieces * share.sequence)
                state = model.initial_state(len(batch.inputs)) if state is None else state
                states = min(n_pieces, 2 * MOST_KEPT) * sum(map(n_bytes, tree_leaves(state)))
            before = rehearsal.live
            with autocast(train.precision, device):
                loss, state = task.loss(model, batch, state)
            activations = rehearsal.live - before
            loss.backward()
            peak = rehearsal.peak + states
    except Exception as error:  # whatever code does to whom a number is missing
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnknownError(f"the memory of this run cannot be estimated: {reason}") from error
    rest = max(0, peak - parameters - trained - activations)
    whole, divided = parameters, share.tensor * share.sharded > 1
    if divided:  # what is in no layer, such as the embedding, is whole on each tensor-parallel rank
        in_layers = sum(layers)
        spared = in_layers - in_layers / share.tensor
        parameters, trained = (round((n - spared) / share.sharded) for n in (parameters, trained))
    moments, begin, save = MOMENTS * trained - round(sum(matrices) / share.tensor / share.sharded), 0, 0
    if divided:
        gathered = 3 * max(layers, default=0) if share.sharded > 1 else 0
        begin = whole // share.on_machine if device.type == "cpu" else 0
        save = 2 * largest
        step = parameters + trained + moments + activations + rest + gathered
        updated = parameters + trained + moments + update
        most = max(step, updated, parameters + largest + begin, parameters + moments + save)
    else:
        most = moments + max(peak, parameters + trained + update)
    return MemoryEstimate(
        device=device.type,
        parameters=parameters,
        gradients=trained,
        moments=moments,
        activations=activations,
        temporary=rest,
        peak=most,
        available=available_to(device, share),
        begin=begin,
        save=save,
    )


def by_muon(model: Model, config: OptimizerConfig) -> list[int]:
    """The bytes of each matrix that Muon moves."""
    if config.matrices != "muon":
        return []
    groups = parameter_groups(model, config)
    return [n_bytes(p) for group in groups if group.optimizer == "Muon" for _, p in group.parameters]


def available_to(device: torch.device, share: Share) -> int | None:
    free = available_memory(device)
    return free if free is None or device.type == "cuda" else free // share.on_machine


def largest_batch(task: Task[Any, Any], share: Share) -> Any:
    """The first micro-batch, or the largest of the first few where they differ, and of it what one process reads."""
    if task.run.train.pieces > 1:  # which the ranks of a row share, each piece by itself: see rehearse
        share = replace(share, sequence=1)
    n_steps = task.batches.steps_per_epoch
    if task.run.train.short_first:
        batch = task.batches[n_steps - 1]
    else:
        batch = task.batches[0]
    if getattr(batch, "lengths", None) is not None and not task.run.train.short_first:
        batch = max((task.batches[step] for step in range(min(LOOKED_AT, n_steps))), key=n_numbers)
    return tree_map(lambda leaf: _part(leaf, share) if isinstance(leaf, Tensor) else leaf, batch)


def _part(leaf: Tensor, share: Share) -> Tensor:
    leaf = leaf[: -(-leaf.shape[0] // share.data)] if leaf.ndim else leaf
    return leaf[:, : -(-leaf.shape[1] // share.sequence)] if leaf.ndim > 1 else leaf


def n_numbers(batch: Any) -> int:
    return max((leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), default=0)


def n_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
