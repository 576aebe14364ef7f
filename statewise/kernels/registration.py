"""How a kernel becomes an operator of PyTorch, so that autograd, torch.compile and torch.export know it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from statewise.errors import InputError
from statewise.kernels.arguments import Needs, allocator, checker, names_of
from statewise.kernels.batching import one_by_one
from statewise.precision import products_at, rounds_products, rounds_projections, without_autocast

# What runs, by qualified name: for whoever follows what an operator does inside
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}
_LIBRARY = torch.library.Library("statewise", "FRAGMENT")


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
    first call imports ``torch._dynamo``: almost two seconds before the first token, and more time in every call; nor
    its ``register_autograd``, which reads the whole schema again in every call. A kernel chooses its own precision, so
    autocast is off inside, and no factor of a product is rounded unless it ``is_projection`` (see precision.py).
    """
    qualified = f"statewise::{name}"
    torch.library.define(qualified, f"({arguments}) -> ({', '.join(['Tensor'] * len(gives))})")
    operator = getattr(torch.ops.statewise, name).default
    names = names_of(arguments)
    check = checker(name, names, takes, needs)
    IMPLEMENTATIONS[qualified] = _checked(check, _in_its_own_precision(implementation, is_projection))
    torch.library.impl(qualified, "default", IMPLEMENTATIONS[qualified])
    torch.library.register_fake(qualified, _checked(check, fake or allocator(names, takes, gives)))
    differentiable = _differentiable(name, operator, setup_context or save, backward)
    _LIBRARY.impl(name, differentiable, "Autograd")
    torch.library.register_vmap(qualified, one_by_one(operator))
    return _without_forward_mode(name, operator, differentiable)


def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Keeps the arguments of an operator, its tensors first, for its derivative."""
    tensors = [m for m in inputs if m is None or isinstance(m, torch.Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.numbers = inputs[len(tensors) :]


def saved(ctx: Any) -> list[Any]:
    """What :func:`save` kept. To be asked once: gradient checkpointing computes it again and forbids a second look."""
    return [*ctx.saved_tensors, *ctx.numbers]


def _checked(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        check(*arguments)
        return function(*arguments)

    return run


def _differentiable(
    name: str, operator: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator as autograd calls it: recorded where a gradient is wanted, and from there on without autograd."""

    def run(*inputs: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
            return recorded(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    def forward(ctx: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output = operator(*inputs)
        setup_context(ctx, inputs, output)
        return output

    def differentiate(ctx: Any, *grads: Any) -> Any:
        """Unrounded: a derivative goes through PyTorch's own operations too, where it is taken once more."""
        # not of what is saved: gradient checkpointing lets that be looked at only once
        devices = [m.device for m in grads if m is not None]  # there may be no gradient at all
        with without_autocast(devices[0] if devices else torch.device("cpu")):
            return backward(ctx, *grads)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(differentiate)}
    function: Any = type(f"BackwardOf_{name}", (torch.autograd.Function,), methods)
    recorded = function.apply
    return run


def _without_forward_mode(
    name: str, operator: Callable[..., Any], differentiable: Callable[..., Any]
) -> Callable[..., Any]:
    """Forward mode is refused, which PyTorch would let pass with a derivative of zero."""

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*arguments)
        if forward_ad._current_level >= 0:
            tensors = [m for m in arguments if isinstance(m, torch.Tensor)]
            if any(forward_ad.unpack_dual(m).tangent is not None for m in tensors):
                raise InputError(
                    f"{name} has no derivative in forward mode (jvp, jacfwd); use reverse mode, with "
                    "torch.autograd.grad or torch.autograd.functional.jacobian"
                )
        if torch._C._are_functorch_transforms_active():
            return operator(*arguments)
        return differentiable(*arguments)  # what the operator would come to, by a shorter way

    return call


def _in_its_own_precision(implementation: Callable[..., Any], is_projection: bool) -> Callable[..., Any]:
    """Without this, autocast would turn the matrix products inside a float32 kernel into bfloat16 ones."""

    @functools.wraps(implementation)
    def run(*arguments: Any) -> Any:
        device = arguments[0].device
        if is_projection:
            precision = "high" if rounds_projections(device) else None
        else:
            precision = "highest" if rounds_products() else None
        if precision is None:
            with without_autocast(device):
                return implementation(*arguments)
        with products_at(precision), without_autocast(device):
            return implementation(*arguments)

    return run
