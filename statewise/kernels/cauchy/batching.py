"""Several models at once: their channels are channels of one sum."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statewise.kernels.batching import merged

_NODES_SHARED = merged("cauchy", {"v": 0, "Lambda": 0}, 0)
_NODES_EACH = merged("cauchy", {"v": 0, "z": 0, "Lambda": 0}, 0)


def vmap_rule(info: Any, in_dims: tuple[int | None, ...], v: Tensor, z: Tensor, Lambda: Tensor) -> tuple[Any, Any]:
    """Nodes z of (1, nodes) are those of all channels, and of all models if these have no nodes of their own."""
    if in_dims[1] is None and z.shape[0] == 1:
        return _NODES_SHARED(info, in_dims, v, z, Lambda)
    width = v.shape[1 if in_dims[0] == 0 else 0]
    z = z if in_dims[1] is None else z.movedim(in_dims[1], 0)
    z = z.expand(*z.shape[:-2], width, z.shape[-1])
    return _NODES_EACH(info, (in_dims[0], None if in_dims[1] is None else 0, in_dims[2]), v, z, Lambda)
