"""How a kernel becomes an operator of PyTorch, so that autograd, torch.compile and torch.export know it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from statewise.errors import InputError
from statewise.precision import products_at, rounds_products, rounds_projections

# What runs, by qualified name: for whoever follows what an operator does inside
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}


def register(
    name: str,
    schema: str,
    implementation: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
    is_projection: bool = False,
) -> Callable[..., Any]:
    """Registers ``statewise::name`` for every device and returns it.

    ``fake`` gives empty outputs of the right shapes, ``setup_context`` and ``backward`` the derivative, ``vmap`` the
    rule for several models at once (see batching.py); an operator that only a ``backward`` calls needs none. The parts
    of ``torch.library`` below are used rather than its ``custom_op``, whose first call imports ``torch._dynamo``:
    almost two seconds before the first token, and more time in every call. A kernel chooses its own precision, so
    autocast is off inside, and no factor of a product is rounded unless it ``is_projection`` (see precision.py).
    """
    qualified = f"statewise::{name}"
    IMPLEMENTATIONS[qualified] = _in_its_own_precision(implementation, is_projection)
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", IMPLEMENTATIONS[qualified])
    torch.library.register_fake(qualified, fake)
    torch.library.register_autograd(qualified, backward, setup_context=setup_context)
    if vmap is not None:
        torch.library.register_vmap(qualified, vmap)
    return _without_forward_mode(name, getattr(torch.ops.statewise, name).default)


def _without_forward_mode(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """Forward mode is refused, which PyTorch would let pass with a derivative of zero."""

    def call(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
            tensors = [m for m in arguments if isinstance(m, torch.Tensor)]
            if any(forward_ad.unpack_dual(m).tangent is not None for m in tensors):
                raise InputError(
                    f"{name} has no derivative in forward mode (jvp, jacfwd); take it backwards, "
                    "with torch.autograd.grad or torch.autograd.functional.jacobian"
                )
        return operator(*arguments)

    return call


def _in_its_own_precision(implementation: Callable[..., Any], is_projection: bool) -> Callable[..., Any]:
    """Without this, autocast would turn the matrix products inside a float32 kernel into bfloat16 ones."""

    @functools.wraps(implementation)
    def run(first: torch.Tensor, *rest: Any) -> Any:
        if is_projection and rounds_projections(first.device):
            with products_at("high"):
                return without_autocast(first, *rest)
        if not is_projection and rounds_products():
            with products_at("highest"):
                return without_autocast(first, *rest)
        return without_autocast(first, *rest)

    def without_autocast(first: torch.Tensor, *rest: Any) -> Any:
        device = first.device.type
        if not torch.is_autocast_enabled(device):
            return implementation(first, *rest)
        with torch.autocast(device, enabled=False):
            return implementation(first, *rest)

    return run
