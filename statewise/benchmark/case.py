"""A case: sides that compute the same from the same inputs, to be timed in turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

OURS = "ours"
OURS_WITHOUT_C = "ours without C"

Action = Callable[[], Any]  # does the work once; gives its outputs, so that their bytes can be told apart
Function = Callable[..., Any]


class Missing(Exception):
    """A side cannot run here; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of a workload.

    sides:    by name, what prepares the action of that side; it may raise :class:`Missing`
    length:   time steps or tokens of one action, for the cost of each and the plot
    setting:  what all sides are given, in words
    rounds:   the least number of turns; the slowest cases have fewer than the rest
    """

    name: str
    setting: str
    sides: Mapping[str, Callable[[], Action]]
    length: int = 1
    rounds: int = 5


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Cases of one kind: ``cases(quick)`` gives as many of the same names when quick, only of smaller sizes.

    memory: the cases whose peak memory matters, by name
    """

    name: str
    summary: str
    cases: Callable[[bool], list[Case]]
    memory: tuple[str, ...] = ()

    def case(self, name: str, quick: bool) -> Case:
        return next(case for case in self.cases(quick) if case.name == name)


def case_name(what: str, gradients: bool) -> str:
    return f"{what}, {'forward and backward' if gradients else 'forward'}"


def kernel_case(
    name: str,
    setting: str,
    make_inputs: Callable[[], Sequence[Tensor]],
    sides: Mapping[str, Callable[[], Function]],
    *,
    gradients: bool = False,
    length: int = 1,
    rounds: int = 5,
) -> Case:
    """A case of pure functions of the same tensors: forward, or forward and all gradients of the first output."""
    inputs = functools.cache(make_inputs)

    def prepare(build: Callable[[], Function]) -> Action:
        function = build()
        tensors = inputs()
        if not gradients:
            return torch.no_grad()(lambda: function(*tensors))
        return lambda: forward_and_backward(function, tensors)

    builders = {side: functools.partial(prepare, build) for side, build in sides.items()}
    return Case(name=name, setting=setting, sides=builders, length=length, rounds=rounds)


def forward_and_backward(function: Function, tensors: Sequence[Tensor]) -> Any:
    """The first output and the gradients of its sum with respect to every input it depends on."""
    with torch.enable_grad():
        leaves = [m.detach().requires_grad_() if m.dtype.is_floating_point or m.is_complex() else m for m in tensors]
        output = function(*leaves)
        y = output[0] if isinstance(output, tuple) else output
        wanted = [m for m in leaves if m.requires_grad]
        return y, torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)


def ours(function: Function) -> dict[str, Callable[[], Function]]:
    """Our side twice: as it runs by itself where the C kernels are there, and through PyTorch alone."""
    return {OURS: lambda: with_kernels("c", function), OURS_WITHOUT_C: lambda: with_kernels("torch", function)}


def our_sides(prepare: Callable[[], Action], without: Callable[[], Action] | None = None) -> dict[str, Any]:
    """The same for an action that is prepared; ``without`` if it is another one without C."""
    plain = prepare if without is None else without
    return {OURS: lambda: with_kernels("c", prepare()), OURS_WITHOUT_C: lambda: with_kernels("torch", plain())}


def with_kernels(choice: str, function: Function) -> Function:
    """The function with our kernels chosen: "c" lets C run wherever it can, "torch" nowhere."""
    import statewise.native as native
    from statewise.kernels import backend

    if choice == "c" and not native.available():
        raise Missing(f"the C kernels are not available: {native.why_not()}")
    used = "auto" if choice == "c" else "torch"  # what C cannot take goes through PyTorch, as everywhere

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with backend.use(used):
            return function(*arguments, **options)

    return run


def n_bytes(outputs: Any) -> int:
    """The bytes of all tensors of a pytree."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
