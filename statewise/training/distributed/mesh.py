"""How the ranks of a run lie: (data, sequence, tensor), the last one nearest to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from statewise.errors import ConfigError
from statewise.training.config import ParallelConfig

AXES = ("data", "sequence", "tensor")


@dataclass(frozen=True)
class Layout:
    """Where this rank is, and with whom it does what.

    A part is what is read of a batch by the ranks that share their tensors: some of its rows, a piece of each. Parts
    are numbered row by row, so that the first ``sequence`` of them are the pieces of the first rows.
    """

    config: ParallelConfig
    mesh: DeviceMesh
    parts: DeviceMesh  # the ranks that read different parts, of which each has all of the model, or a shard

    @property
    def n_data(self) -> int:
        return self.mesh.size(0)

    @property
    def data_rank(self) -> int:
        return self.mesh.get_local_rank("data")

    @property
    def sequence_rank(self) -> int:
        return self.mesh.get_local_rank("sequence")

    @property
    def tensor_rank(self) -> int:
        return self.mesh.get_local_rank("tensor")

    @property
    def n_parts(self) -> int:
        return self.n_data * self.config.sequence

    @property
    def sharded(self) -> bool:
        """Whether each of several parts has a shard of the model (FSDP)."""
        return self.n_parts > 1 and self.config.data == "fsdp"

    @property
    def part(self) -> int:
        return self.data_rank * self.config.sequence + self.sequence_rank


def lay_out(config: ParallelConfig, device_type: str) -> Layout:
    """The mesh of all ranks.

    Errors: ConfigError if their number does not divide, or for tensor-parallel ranks that share rows by DDP.
    """
    world, shared = dist.get_world_size(), config.tensor * config.sequence
    if world % shared:
        raise ConfigError(
            f"train.parallel.tensor={config.tensor} times sequence={config.sequence} is {shared}, which does not "
            f"divide the {world} processes of the run; start a multiple of {shared}, or change one of them"
        )
    n_data = world // shared
    if config.tensor > 1 and n_data * config.sequence > 1 and config.data == "ddp":
        raise ConfigError(
            f"train.parallel.tensor={config.tensor} on {world} processes leaves {n_data * config.sequence} parts of a "
            "batch, whose gradients DDP cannot gather beside it; set train.parallel.data=fsdp"
        )
    mesh = init_device_mesh(device_type, (n_data, config.sequence, config.tensor), mesh_dim_names=AXES)
    if config.sequence == 1:
        parts = mesh["data"]
    elif n_data == 1:
        parts = mesh["sequence"]
    else:
        parts = mesh["data", "sequence"]._flatten("parts")
    return Layout(config, mesh, parts)
