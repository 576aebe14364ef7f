"""Tensors of which each rank has a part (DTensor), beside ordinary ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils._pytree import tree_map

from statewise.errors import ConfigError
from statewise.mixers.attention_state import AttentionState

T = TypeVar("T", bound=Tensor)


def by_mesh(tensors: Sequence[T]) -> list[list[T]]:
    """The tensors in groups of those that one operation can take together: on one mesh, or on none."""
    groups: dict[Any, list[T]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(groups.values())


def own(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor; the memory is shared."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank of its mesh; each of them has to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Gathering:
    """Tensors that rank 0 asks for, and gets whole: any of them, in any order, one at a time.

    Every rank makes it of the same tensors; then rank 0 calls ``whole`` and at last ``end``, the others ``answer``.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._in_parts = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
        self._numbers = {id(tensor): number for number, tensor in enumerate(self._in_parts)}

    def whole(self, tensor: Tensor) -> Tensor:
        """All of one of them, for which every rank that answers has to have memory too."""
        if not isinstance(tensor, DTensor):
            return tensor.detach()
        return self._gather(self._agree_on(self._numbers[id(tensor)]))

    def end(self) -> None:
        self._agree_on(-1)

    def answer(self) -> None:
        """Until rank 0 has all that it wants."""
        while (number := self._agree_on(0)) >= 0:
            self._gather(number)

    def _gather(self, number: int) -> Tensor:
        with torch.no_grad():
            return self._in_parts[number].full_tensor()

    @staticmethod
    def _agree_on(number: int) -> int:
        """Rank 0's."""
        asked = torch.tensor(number)
        dist.broadcast(asked, src=0)
        return int(asked)


def scatter(tensors: Mapping[str, Tensor], whole: Mapping[str, Tensor] | None) -> None:
    """Puts into tensors, of which each rank may have a part, what rank 0 alone has (None elsewhere): one by one."""
    for name, target in tensors.items():
        if whole is None:
            full = torch.empty(target.shape, dtype=target.dtype)
        else:
            full = whole[name].cpu().contiguous()
        dist.broadcast(full, src=0)
        with torch.no_grad():
            put(target, full)


def put(target: Tensor, full: Tensor) -> None:
    """Copies a whole tensor into this rank's part of one."""
    own(target).copy_(_part_of(full, target) if isinstance(target, DTensor) else full)


def part_like(full: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, divided as ``like`` is, in memory of its own; no rank hears of another's."""
    if not isinstance(like, DTensor):
        return full.clone()
    local = _part_of(full, like).clone(memory_format=torch.contiguous_format).to(like.device)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=full.shape, stride=full.contiguous().stride()
    )


def _part_of(full: Tensor, like: DTensor) -> Tensor:
    part, mesh = full, like.device_mesh
    # The last axis of a mesh divides first: FSDP cuts what tensor parallelism has left
    for axis in reversed(range(mesh.ndim)):
        placement = like.placements[axis]
        if isinstance(placement, (Shard, _StridedShard)):
            parts, number = part.chunk(mesh.size(axis), placement.dim), mesh.get_local_rank(axis)
            part = parts[number] if number < len(parts) else part.narrow(placement.dim, 0, 0)
    assert part.shape == like.to_local().shape
    return part


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm over all of them, equal to the bit on every rank, so that all clip alike.

    What every rank has in full needs no talk; of parts the squares are added up, in float64 and in one go.
    """
    whole_here = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    parts: dict[int, list[Tensor]] = {}  # by how many ranks have the same part
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            n_parts = math.prod(
                gradient.device_mesh.size(axis)
                for axis, placement in enumerate(gradient.placements)
                if not placement.is_replicate()
            )
            parts.setdefault(dist.get_world_size() // n_parts, []).append(gradient.to_local())
    if not parts:
        return get_total_norm(whole_here)
    shared = torch.stack([get_total_norm(own).double().square() / copies for copies, own in parts.items()]).sum()
    dist.all_reduce(shared)
    if whole_here:
        shared = shared + get_total_norm(whole_here).double().square()
    return shared.sqrt().to(gradients[0].dtype)


MESSAGE = 2**22  # numbers that travel together


def sum_over(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Each becomes the sum of what all ranks have of it. Small ones of one dtype travel in one message."""
    together: dict[torch.dtype, list[Tensor]] = {}

    def send(dtype: torch.dtype) -> None:
        found = together.pop(dtype)
        message = torch.cat([tensor.flatten() for tensor in found])
        dist.all_reduce(message, group=group)
        for tensor, part in zip(found, message.split([tensor.numel() for tensor in found])):
            tensor.copy_(part.view_as(tensor))

    for tensor in tensors:
        found = together.setdefault(tensor.dtype, [])
        found.append(tensor)
        if sum(one.numel() for one in found) >= MESSAGE:
            send(tensor.dtype)
    for dtype in list(together):
        send(dtype)


def clip(parameters: Sequence[Tensor], most: float, norm: Tensor) -> None:
    for group in by_mesh([parameter for parameter in parameters if parameter.grad is not None]):
        clip_grads_with_norm_(group, most, norm)


def rows(tree: Any, number: int, n_parts: int) -> Any:
    """One of ``n_parts`` equal parts of the rows of every tensor."""

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        n = leaf.shape[0] // n_parts
        return leaf.narrow(0, number * n, n)

    return tree_map(cut, tree)


def gather_rows(tree: Any, group: dist.ProcessGroup) -> Any:
    """The inverse of :func:`rows`: the rows of all ranks of the group, on each of them.

    Errors: ConfigError for a state whose rows have not the same size on all ranks.
    """

    def roomy(node: Any) -> Any:
        """A history of attention, with as many slots as on the rank that has most: those behind it are spare."""
        if not isinstance(node, AttentionState):
            return node
        slots: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(slots, node.keys.shape[1], group=group)
        more = (0, 0) * (node.keys.ndim - 2) + (0, max(slots) - node.keys.shape[1])
        return node._replace(keys=F.pad(node.keys, more), values=F.pad(node.values, more))

    def join(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shapes: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(shapes, tuple(leaf.shape), group=group)
        if len(set(shapes)) > 1:
            raise ConfigError(
                f"the carried state has rows of shapes {sorted(set(shapes))} on different ranks, which do not fit "
                "together; set train.carry_state=false"
            )
        parts = [torch.empty_like(leaf, memory_format=torch.contiguous_format) for _ in shapes]
        dist.all_gather(parts, leaf.contiguous(), group=group)
        return torch.cat(parts)

    return tree_map(join, tree_map(roomy, tree, is_leaf=_is_history))


def _is_history(node: Any) -> bool:
    return isinstance(node, AttentionState)


def seed_of(seed: int, step: int, part: int) -> int:
    """A seed below 2^32 for a part of a batch that draws numbers of its own.

    >>> len({seed_of(0, step, part) for step in range(4) for part in range(4)})
    16
    """
    words = torch.Generator().manual_seed(math.prod((seed + 1, 2**20)) + 2**10 * step + part)
    return int(torch.randint(2**32, (), generator=words))
