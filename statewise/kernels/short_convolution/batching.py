"""Several models at once: their channels are channels of one convolution."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statewise.kernels.batching import merged, one_by_one

_MERGED = merged("short_convolution", (2, 0, 2, None), 2)
_ONE_BY_ONE = one_by_one("short_convolution")


def vmap_rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor | None) -> tuple[Any, Any]:
    """Channels of one convolution have the same documents; where those of the models differ, one after the other."""
    rule = _MERGED if in_dims[3] is None else _ONE_BY_ONE
    return rule(info, in_dims, *arguments)
