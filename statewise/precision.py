"""Products of float32 matrices where the process lets their factors be rounded: what may be, and what may not.

``torch.set_float32_matmul_precision`` below "highest" allows TF32 on CUDA and bfloat16 on CPUs with AMX: three
digits or two. A projection bears that. Powers of a transition matrix do not: each doubling of the length doubles the
error, so that a filter of a thousand taps would keep none of them. Autocast to bfloat16 rounds to two digits as well,
and is kept away from the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_NARROWER = {wide: narrow for narrow, wide in _WIDER.items()}

_rounds_projections = False


def full_precision(*dtypes: torch.dtype) -> torch.dtype:
    """The real dtype that numbers of these are computed in: float64 if one of them is that wide, else float32."""
    return torch.float64 if torch.float64 in dtypes or torch.complex128 in dtypes else torch.float32


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, without a call if it is: in exact mode each call of PyTorch is looked at, for microseconds."""
    return x if x.dtype == dtype else x.to(dtype)


def rounds_products() -> bool:
    """Whether the process lets factors of float32 products be rounded."""
    return torch.get_float32_matmul_precision() != "highest"


# For torch.compile, which cannot see into it: what torch.compiler.assume_constant_result does, a call that would import
# the compiler, two seconds' work
rounds_products._dynamo_marked_constant = True  # type: ignore[attr-defined]


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which autocast leaves alone what is computed on the device; nothing at all where it is off."""
    kind = "cpu" if device.type == "meta" else device.type  # meta has no autocast to refuse
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def exactly(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` without autocast; where the process rounds the factors of products, in float64.

    Arguments and results may be trees; tensors of float32 and complex64 are widened, and come back as they were.
    Where one is in float64 nothing changes: those products are not rounded. Gradients pass through the same products.
    """
    with without_autocast(next(m.device for m in arguments if isinstance(m, Tensor))):
        return _in_wider_numbers(function, *arguments) if rounds_products() else function(*arguments)


def _in_wider_numbers(function: Callable[..., Any], *arguments: Any) -> Any:
    dtypes = {leaf.dtype for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
    if not dtypes & _WIDER.keys() or dtypes & _NARROWER.keys():
        return function(*arguments)
    return tree_map(_narrow, function(*tree_map(_widen, arguments)))


def _widen(leaf: Any) -> Any:
    return leaf.to(_WIDER.get(leaf.dtype, leaf.dtype)) if isinstance(leaf, Tensor) else leaf


def _narrow(leaf: Any) -> Any:
    return leaf.to(_NARROWER.get(leaf.dtype, leaf.dtype)) if isinstance(leaf, Tensor) else leaf


@contextmanager
def products_at(precision: str) -> Iterator[None]:
    """Within it float32 products have this precision of PyTorch's; for code that autograd does not look into."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def fast_projections() -> Iterator[None]:
    """Within it projections may round their factors to TF32 on CUDA; nothing else that could not before."""
    global _rounds_projections
    before, _rounds_projections = _rounds_projections, True
    try:
        yield
    finally:
        _rounds_projections = before


def rounds_projections(device: torch.device) -> bool:
    """Whether :func:`fast_projections` has a say on this device."""
    return _rounds_projections and device.type == "cuda"
