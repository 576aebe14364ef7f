"""A mode in which an operation fails if a CUDA graph could not record it, since the host would wait for the device."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = (  # the host reads a number, or a size that the numbers decide, or has numbers of its own copied
    "_local_scalar_dense",
    "equal",
    "is_nonzero",
    "item",
    "lift_fresh",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "unique_dim",
    "_unique2",
    "_linalg_check_errors",
)


class NoHostReads(TorchDispatchMode):
    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.__name__.partition(".")[0]
        if name in WAITS:
            raise AssertionError(f"{name} waits for the device")
        if name in ("index", "index_put_", "index_put"):
            assert not any(i is not None and str(i.dtype) in ("torch.bool", "torch.uint8") for i in args[1]), name
        return operation(*args, **(kwargs or {}))
