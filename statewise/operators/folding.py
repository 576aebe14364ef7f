"""A recurrence over time that stays one loop in a program that is exported for any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.kernels.exact import is_exact
from statewise.kernels.exact.nodes import as_node

# Of what is carried, of one step of each input and of the constants: what is carried on, and outputs
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]


def is_any(length: Any) -> bool:
    """Whether a length has no number, since a program is exported for any. Compiled code has another for each kind."""
    return isinstance(length, torch.SymInt) and not torch.compiler.is_dynamo_compiling()


def fold(
    step: Step, carry: Sequence[Tensor], inputs: Sequence[Tensor], constants: Sequence[Tensor] = (), *, dim: int = 1
) -> tuple[list[Tensor], list[Tensor]]:
    """``carry, outputs = step(carry, inputs, constants)``, one step of ``dim`` after the other.

    What is carried is there at the end, and the outputs have all steps along ``dim``. In a program that is exported
    for any length it is one operator, ``torch.ops.higher_order.scan``, to which ``step`` is shown once: it may use no
    tensor but its arguments.

    Shapes:  each of inputs: (..., length, ...), with the length, at least 1, at ``dim``
    Cost:    one step after the other.
    """
    if is_exact() and torch.is_grad_enabled():
        step = as_node(step)
    if not is_any(inputs[0].shape[dim]):
        now, outputs = list(carry), []
        for parts in zip(*(x.unbind(dim) for x in inputs)):
            after, given = step(now, list(parts), list(constants))
            now = list(after)
            outputs.append(given)
        return now, [torch.stack(list(parts), dim) for parts in zip(*outputs)]

    from torch._higher_order_ops.scan import scan_op  # two seconds, of which nothing else needs to know

    n, m = len(carry), len(carry) + len(inputs)

    def flat(*given: Tensor) -> tuple[Tensor, ...]:
        after, outputs = step(list(given[:n]), list(given[n:m]), list(given[m:]))
        return *map(_own, after), *map(_own, outputs)  # none may be another, or an argument

    # of what is no parameter the tracer knows nothing until something is done to it
    found = scan_op(flat, [*map(_own, carry)], [x.movedim(dim, 0) for x in inputs], tuple(map(_own, constants)))
    return list(found[:n]), [x.movedim(0, dim) for x in found[n:]]


def _own(x: Tensor) -> Tensor:
    """A copy that lies in memory as any other of its shape."""
    return x.clone(memory_format=torch.contiguous_format)
