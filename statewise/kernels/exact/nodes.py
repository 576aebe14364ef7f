"""A step in time as one node of the graph, and a look at the past as another: gradients meet in them in one order.

Autograd adds up what several uses of a tensor send back in the order in which they were made. Where a sequence is cut
one of these uses is in another call, and the order changes. Within a node nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]


def as_node(step: Step) -> Step:
    """The same step, whose state before and behind it has one use each: the next step's, or the caller's.

    Its derivative computes it again.
    """

    def run(
        carry: list[Tensor], inputs: list[Tensor], constants: list[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        n = len(carry)
        found: tuple[Tensor, ...] = _Node.apply(step, (n, len(inputs)), *carry, *inputs, *constants)
        return found[:n], found[n:]

    return run


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, counts: tuple[int, int], *given: Tensor) -> tuple[Tensor, ...]:
        ctx.step, ctx.counts = step, counts
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return tuple(m.clone() for m in _run(step, counts, given))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        n = sum(ctx.counts)
        given = list(ctx.saved_tensors)
        for i in range(n):  # the constants stay what they are, for a step that reads them elsewhere
            given[i] = given[i].detach().requires_grad_(ctx.needs_input_grad[2 + i])
        with torch.enable_grad():
            found = _run(ctx.step, ctx.counts, given)
        wanted = [i for i in range(len(given)) if ctx.needs_input_grad[2 + i]]
        sent = [(y, g) for y, g in zip(found, grads) if g is not None and y.requires_grad]
        by_place: list[Tensor | None] = [None] * len(given)
        if sent and wanted:
            outputs, slopes = zip(*sent)
            parts = torch.autograd.grad(outputs, [given[i] for i in wanted], slopes, allow_unused=True)
            for i, part in zip(wanted, parts):
                by_place[i] = part
        return None, None, *by_place


def _run(step: Step, counts: tuple[int, int], given: Sequence[Tensor]) -> list[Tensor]:
    n, m = counts[0], sum(counts)
    after, outputs = step(list(given[:n]), list(given[n:m]), list(given[m:]))
    return [*after, *outputs]


def windows(past: Tensor, offsets: Sequence[int], length: int) -> tuple[list[Tensor], Tensor]:
    """``past[:, at : at + length]`` for each offset, and past itself, for the state to be made of.

    Gradients of a number of past add up from its newest use to its oldest, and begin with what later calls have left.
    """
    *seen, past = _Windows.apply(past, tuple(offsets), length)
    return seen, past


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, past: Tensor, offsets: tuple[int, ...], length: int) -> tuple[Tensor, ...]:
        ctx.offsets, ctx.length, ctx.like = offsets, length, past.new_zeros(())
        ctx.shape = past.shape
        ctx.set_materialize_grads(False)
        return (*(past[:, at : at + length].clone() for at in offsets), past.detach())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *slopes, after = grads
        total = ctx.like.new_zeros(ctx.shape) if after is None else after.clone()
        for at, slope in sorted(
            zip(ctx.offsets, slopes), key=lambda pair: pair[0]
        ):  # the newest use is the first place
            if slope is not None:
                total[:, at : at + ctx.length] += slope
        return total, None, None
