"""Complex numbers that are kept as real pairs, as every state is."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.kernels.batching import stacked


def as_complex(m: Tensor) -> Tensor:
    """(..., 2) as complex numbers: a view where pairs lie as such in memory, else of a copy.

    ``contiguous`` does not do it: where an axis has size 1 or 0 it keeps any stride, and any offset anywhere. Under
    vmap, and while compiling, nobody can ask how the pairs lie.
    """
    if not torch.compiler.is_compiling() and not stacked(m) and _lie_as_complex(m):
        return torch.view_as_complex(m)
    return torch.complex(*m.unbind(-1))


def _lie_as_complex(m: Tensor) -> bool:
    return m.storage_offset() % 2 == 0 and m.stride(-1) == 1 and all(stride % 2 == 0 for stride in m.stride()[:-1])
