"""What is done to a model so that several ranks can train it: batch norm, tensor parallelism, then DDP or FSDP2."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from statewise.errors import ConfigError
from statewise.mixers.attention import Attention
from statewise.mixers.projection import Linear
from statewise.models.base import Model
from statewise.models.batch_norm import BatchNorm
from statewise.training.config import RunConfig, TrainConfig
from statewise.training.distributed.batch_norm import share_statistics
from statewise.training.distributed.mesh import Layout
from statewise.training.distributed.sequence import SequenceParallel, apply_sequence_parallel
from statewise.training.distributed.tensor_parallel import share_projections
from statewise.training.tasks.base import Task

_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")  # the latter before PyTorch 2.13
    if name in inspect.signature(DistributedDataParallel).parameters
)
# What tasks call of a model besides the model itself: before it runs, the parameters outside of the layers are gathered
METHODS = ("features", "loss", "scaled_forecasts")


@dataclass(frozen=True)
class Wrapped:
    """A model that several ranks share.

    ddp:         its loss, with gradients gathered by DDP; None where the model itself sees to them
    works_apart: whether a pass through the model alone needs no other rank
    sequence:    what lets it read pieces of rows; None: it reads whole ones
    rounded:     whether its linear maps get their matrices in bfloat16, which they can use only under autocast
    """

    ddp: DistributedDataParallel | None
    works_apart: bool
    sequence: SequenceParallel | None
    rounded: bool


class _Loss(nn.Module):
    """The loss as a module, for DDP wraps the call of one."""

    def __init__(self, task: Task[Any, Any], model: Model) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        loss, carried = self.task.loss(self.model, batch, carried)
        return loss, carried


def require_divisible(run: RunConfig, layout: Layout) -> None:
    """Errors: ConfigError if the rows of a batch cannot be divided, or for what does not work on several ranks."""
    train = run.train
    if train.batch_size % layout.n_data:
        raise ConfigError(
            f"train.batch_size={train.batch_size} is that of all processes together, and {layout.n_data} data ranks do "
            f"not divide it; use a multiple of {layout.n_data}, or another number of processes"
        )
    if not train.drop_last and layout.n_data > 1:
        raise ConfigError(
            f"train.drop_last=false: the last batch of an epoch may not divide among {layout.n_data} data ranks; set "
            "train.drop_last=true"
        )
    if train.compile:
        raise ConfigError("train.compile=true works only in one process; set train.compile=false")


def wrap(task: Task[Any, Any], model: Model, layout: Layout, config: TrainConfig, device: torch.device) -> Wrapped:
    """The model is changed in place: its config, its methods and the names of its parameters stay.

    device: where it will be after this. What is divided goes there piece by piece, so that no device has to hold all
    Errors: ConfigError if its sizes do not divide, or a layer cannot be cut along the sequence.
    """
    parallel, ddp, sequence = layout.config, None, None
    has_batch_norm = any(isinstance(module, BatchNorm) for module in model.modules())
    if parallel.sequence > 1:
        _require_cuttable(model, config, has_batch_norm)
        sequence = apply_sequence_parallel(model, layout.mesh.get_group("sequence"), device=device)
        task.piece(task.batches[0], 0, parallel.sequence)  # refuses what cannot be cut, before anything is begun
    if has_batch_norm and layout.n_parts > 1:
        share_statistics(model, layout.parts.get_group())
    if parallel.tensor > 1:
        share_projections(model, layout.mesh["tensor"])
    rounded = layout.sharded and config.precision == "bfloat16" and parallel.sequence == 1
    if layout.sharded:
        _shard(model, layout.parts, rounded)
    else:
        _move(model, device)
    if layout.n_parts > 1 and not layout.sharded:
        # Buffers are the same everywhere: see batch_norm.py. Parameters are yet to be filled, by all ranks alike
        options: dict[str, Any] = {_BUFFERS: False, "init_sync": False}
        group = layout.parts.get_group()
        ddp = DistributedDataParallel(_Loss(task, model), process_group=group, gradient_as_bucket_view=True, **options)
    return Wrapped(ddp, ddp is not None and sequence is None and not has_batch_norm, sequence, rounded)


def _require_cuttable(model: Model, config: TrainConfig, has_batch_norm: bool) -> None:
    """Errors: ConfigError for settings that do not work on pieces of rows."""
    n = config.parallel.sequence
    if config.carry_state and any(isinstance(block.mixer, Attention) for block in model.blocks):
        raise ConfigError(
            f"train.carry_state=true and train.parallel.sequence={n}: a layer of attention hands no state on from "
            "batch to batch on pieces of rows; set train.carry_state=false or train.parallel.sequence=1"
        )
    if config.pieces > 1 and any(isinstance(block.mixer, Attention) for block in model.blocks):
        raise ConfigError(
            f"train.pieces={config.pieces} and train.parallel.sequence={n}: a layer of attention hands no state on "
            "from piece to piece while ranks share the pieces; set one of them to 1"
        )
    if config.gradient_checkpointing and config.pieces > 1:
        raise ConfigError(
            f"train.pieces={config.pieces}, train.gradient_checkpointing=true and train.parallel.sequence={n}: layers "
            "would be read a third time; use more pieces, and set train.gradient_checkpointing=false"
        )
    if config.gradient_checkpointing and has_batch_norm:
        raise ConfigError(
            f"train.gradient_checkpointing=true and train.parallel.sequence={n}: batch norm would take its statistics "
            "over all pieces again while ranks wait for each other's gradients; set train.gradient_checkpointing="
            "false, train.parallel.sequence=1, or another norm"
        )


def _move(model: Model, device: torch.device) -> None:
    """All but what tensor parallelism has divided, which is there already."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device)


def _shard(model: Model, mesh: DeviceMesh, rounded: bool) -> None:
    """FSDP2: each rank holds a part of every parameter, and a layer is whole only while it is used.

    Everything is gathered in float32, but if ``rounded`` the matrices of linear maps, which autocast would round in any
    case: the numbers are those of one process, and the dynamics, norms and readouts of a layer stay float32 throughout.
    Along a sequence these too travel in float32, with their layer: nothing may be gathered within one, where a rank
    waits for the state of the rank before.
    """
    for block in model.blocks:
        if rounded:
            policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
            for module in block.modules():
                if isinstance(module, Linear):
                    fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name in METHODS:
        if callable(getattr(model, name, None)):
            register_fsdp_forward_method(model, name)
