"""An operator and its adjoint, registered together: what follows from their two functions and a definition.

Outputs of the right shapes without values, what is kept for the backward pass, and the second derivatives are the same
in every room, so they stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from statewise.kernels.arguments import Needs, is_differentiable, names_of
from statewise.kernels.backend import c_runs, refusal_of
from statewise.kernels.gpu import triton_or
from statewise.kernels.registration import register, saved

Refusal = Callable[..., str | None]


class Path(Protocol):
    """A module that computes a primitive, in C or in PyTorch."""

    @property
    def forward(self) -> Callable[..., Any]:
        """The outputs, as a function of the operator's arguments."""

    @property
    def backward(self) -> Callable[..., Any]:
        """Takes the gradients of the outputs, then the arguments; returns the arguments' gradients, None for a None."""


def register_with_adjoint(
    name: str,
    arguments: str,
    native: Path | None,
    pytorch: Path,
    *,
    definition: Callable[..., Any],
    takes: Mapping[str, str],
    gives: Mapping[str, str],
    needs: Needs | None = None,
    refusal: Refusal = refusal_of,
    signature: Callable[..., Any] | None = None,
    optional: str | None = None,
) -> Callable[..., Any]:
    """Registers ``statewise::name`` and ``statewise::name_backward``, and returns the first.

    arguments:  as a schema has them
    definition: the same outputs in operations that PyTorch differentiates: second derivatives are taken through it.
                They are rare, so it need not be fast.
    gives:      the outputs, as ``takes`` has the arguments; the adjoint takes their gradients
    native:     None where there is no C
    refusal:    of the tensors by their names: why C cannot take them
    signature:  what carries the arguments to the three functions, if they want them as one object
    optional:   an argument whose gradient is not for nothing. The adjoint has one argument more, whether it is wanted.
    """
    names = list(names_of(arguments))
    tensors = [(key, i) for i, key in enumerate(names) if key in takes]
    learned = [i for key, i in tensors if is_differentiable(takes[key])]
    place = None if optional is None else names.index(optional)
    grads = {"grad" if len(gives) == 1 else f"grad_{key}": kind for key, kind in gives.items()}
    schema = ", ".join([*(f"Tensor {key}" for key in grads), arguments])
    schema += f", bool with_{optional}" if optional else ""

    def packed(given: Sequence[Any]) -> Sequence[Any]:
        return given if signature is None else (signature(*given),)

    def path(given: Sequence[Any]) -> Path:
        if native is not None and c_runs(name, refusal(**{key: given[i] for key, i in tensors})):
            return native
        path: Path = triton_or(pytorch, name, *packed(given))
        return path

    def forward(*given: Any) -> Any:
        found = path(given).forward(*packed(given))
        return as_promised(found) if isinstance(found, Tensor) else tuple(map(as_promised, found))

    def adjoint(*given: Any) -> Any:
        of, given = given[: len(grads)], given[len(grads) :]
        return without_none(path(given).backward(*of, *packed(given)), of[0])

    def empty_gradients(*given: Any) -> Any:
        return without_none([empty_like(given[len(grads) + i]) for i in learned], given[0])

    def plain_adjoint(*given: Any) -> list[Tensor | None]:
        of, inputs = given[: len(grads)], given[len(grads) : len(grads) + len(names)]
        found = gradients_of(lambda *m: definition(*packed(m)), inputs, of, create_graph=True)
        return [found[i] for i in learned]

    backward = register(
        f"{name}_backward",
        schema,
        adjoint,
        takes={**grads, **takes},
        gives={names[i]: takes[names[i]] for i in learned},
        needs=needs,
        fake=empty_gradients,
        backward=derivative_of(plain_adjoint),
    )

    def differentiate(ctx: Any, *of: Tensor) -> tuple[Any, ...]:
        given = saved(ctx)
        is_wanted = place is None or ctx.needs_input_grad[place]
        more = [] if place is None else [is_wanted]
        found = backward(*of, *given, *more)
        by_place: list[Any] = [None] * len(names)
        for i, gradient in zip(learned, (found,) if isinstance(found, Tensor) else found):
            if given[i] is not None and (i != place or is_wanted):
                by_place[i] = gradient
        return tuple(by_place)

    return register(
        name,
        arguments,
        forward,
        takes=takes,
        gives=gives,
        needs=needs,
        backward=differentiate,
    )


def empty_like(m: Tensor | None) -> Tensor | None:
    return None if m is None else torch.empty(m.shape, dtype=m.dtype, device=m.device)


def as_promised(found: Tensor) -> Tensor:
    """With neighbours side by side, as the outputs without values have them: compiled code takes views by these."""
    return found.contiguous()


def without_none(found: Sequence[Tensor | None], like: Tensor) -> Any:
    """As an operator returns them, which cannot be None; one alone is not a tuple."""
    tensors = [like.new_empty(0) if m is None else as_promised(m) for m in found]
    return tuple(tensors) if len(tensors) > 1 else tensors[0]


def derivative_of(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The backward pass of an operator whose arguments :func:`save` kept, through a plain ``function`` of them."""

    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        given = [m.detach().requires_grad_() if _has_gradient(m) else m for m in saved(ctx)]
        with torch.enable_grad():
            return tuple(gradients_of(function, given, grads))

    return backward


def gradients_of(
    function: Callable[..., Any], given: Sequence[Any], grads: Sequence[Tensor], *, create_graph: bool = False
) -> list[Tensor | None]:
    """The gradient of each argument, from those of the function's outputs (None: there is none); None if it is not a
    number.
    """
    found = function(*given)
    outputs = [(y, g) for y, g in zip((found,) if isinstance(found, Tensor) else found, grads) if y is not None]
    first = iter(
        torch.autograd.grad(
            [y for y, _ in outputs],
            [m for m in given if _has_gradient(m)],
            [g for _, g in outputs],
            create_graph=create_graph,
            materialize_grads=True,
        )
    )
    return [next(first) if _has_gradient(m) else None for m in given]


def gradients_inside(
    function: Callable[..., Any], given: Sequence[Any], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The same within an operator, where autograd is out of reach and is let in again."""
    dispatch = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with dispatch, torch.enable_grad():
        leaves = [m.detach().requires_grad_() if _has_gradient(m) else m for m in given]
        return gradients_of(function, leaves, grads)


def _has_gradient(m: Any) -> bool:
    return isinstance(m, Tensor) and (m.is_floating_point() or m.is_complex())
