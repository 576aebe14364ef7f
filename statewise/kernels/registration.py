"""How a kernel becomes an operator of PyTorch, so that autograd, torch.compile and torch.export know it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from statewise.errors import InputError
from statewise.kernels.arguments import Needs, allocator, checker, names_of
from statewise.kernels.batching import one_by_one
from statewise.precision import products_at, rounds_products, rounds_projections, without_autocast

# What runs, by qualified name: for whoever follows what an operator does inside
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}


def register(
    name: str,
    arguments: str,
    implementation: Callable[..., Any],
    *,
    takes: Mapping[str, str],
    gives: Mapping[str, str],
    needs: Needs | None = None,
    fake: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any],
    is_projection: bool = False,
) -> Callable[..., Any]:
    """Registers ``statewise::name`` for every device and returns it.

    ``arguments`` are as a schema has them. ``takes`` and ``needs`` say which fit (see arguments.py): the implementation
    and ``fake`` get no others, whoever calls. ``gives`` are the outputs, as ``takes`` has the arguments; where their
    shapes do not follow from those of the arguments, ``fake`` gives them, empty. ``setup_context`` (if not given, all
    arguments are kept, for :func:`saved`) and ``backward`` give the derivative. Under vmap the operator is called once
    for each that is mapped over. The parts of ``torch.library`` below are used rather than its ``custom_op``, whose
    first call imports ``torch._dynamo``: almost two seconds before the first token, and more time in every call. A
    kernel chooses its own precision, so autocast is off inside, and no factor of a product is rounded unless it
    ``is_projection`` (see precision.py).
    """
    qualified = f"statewise::{name}"
    torch.library.define(qualified, f"({arguments}) -> ({', '.join(['Tensor'] * len(gives))})")
    operator = getattr(torch.ops.statewise, name).default
    names = names_of(arguments)
    check = checker(name, names, takes, needs)
    IMPLEMENTATIONS[qualified] = _in_its_own_precision(_checked(check, implementation), is_projection)
    torch.library.impl(qualified, "default", IMPLEMENTATIONS[qualified])
    torch.library.register_fake(qualified, _checked(check, fake or allocator(names, takes, gives)))
    torch.library.register_autograd(qualified, _unrounded(backward), setup_context=setup_context or save)
    torch.library.register_vmap(qualified, one_by_one(operator))
    return _without_forward_mode(name, operator)


def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Keeps the arguments of an operator for its derivative."""
    ctx.save_for_backward(*(m if isinstance(m, torch.Tensor) else None for m in inputs))
    ctx.numbers = [None if isinstance(m, torch.Tensor) else m for m in inputs]


def saved(ctx: Any) -> list[Any]:
    """What :func:`save` kept. To be asked once: gradient checkpointing computes it again and forbids a second look."""
    return [number if m is None else m for m, number in zip(ctx.saved_tensors, ctx.numbers)]


def _checked(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        check(*arguments)
        return function(*arguments)

    return run


def _unrounded(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A derivative goes through PyTorch's own operations too, where it is taken once more."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        # not of what is saved: gradient checkpointing lets that be looked at only once
        devices = (m.device for m in tree_leaves(grads) if isinstance(m, torch.Tensor))
        with without_autocast(next(devices, torch.device("cpu"))):  # there may be no gradient at all
            return backward(ctx, *grads)

    return run


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
                return in_full(first, *rest)
        if not is_projection and rounds_products():
            with products_at("highest"):
                return in_full(first, *rest)
        return in_full(first, *rest)

    def in_full(first: torch.Tensor, *rest: Any) -> Any:
        with without_autocast(first.device):
            return implementation(first, *rest)

    return run
