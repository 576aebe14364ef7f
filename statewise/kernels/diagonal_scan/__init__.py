"""A diagonal time-invariant system over a whole sequence, from a state to a state: for reading a prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.kernels.backend import c_runs
from statewise.kernels.diagonal_scan import native
from statewise.kernels.diagonal_scan.reference import diagonal_scan_reference
from statewise.kernels.registration import register

__all__ = ["diagonal_scan", "diagonal_scan_reference", "refusal"]

refusal = native.refusal


def _forward(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    path = native.forward if c_runs("diagonal_scan", refusal(u, A)) else diagonal_scan_reference
    return path(u, A, B, C, D, state, lengths)


def _fake(u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, state: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    return torch.empty(u.shape, dtype=u.dtype, device=u.device), torch.empty_like(state)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """Through the definition: callers that want gradients have faster ways."""
    with torch.enable_grad():
        given = [None if m is None else m.detach() for m in ctx.saved_tensors]
        leaves = [m.requires_grad_() for m in given[:6] if m is not None]
        outputs = diagonal_scan_reference(*given)  # type: ignore[arg-type]
        found = iter(torch.autograd.grad(outputs, leaves, grads, materialize_grads=True))
    return *(None if m is None else next(found) for m in given[:6]), None


_diagonal_scan = register(
    "diagonal_scan",
    "(Tensor u, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor state, Tensor? lengths) -> (Tensor, Tensor)",
    _forward,
    takes={
        "u": "b l w r: real",
        **dict.fromkeys("ABC", "w n: pairs u"),
        "D": "w: as u",
        "state": "b w r n 2: as u",
        "lengths": "b: int64",
    },
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)


def diagonal_scan(
    u: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h_t = A h_{t-1} + B u_t, y_t = 2 Re(sum_n C_n h_n) + D u_t, the complex numbers being one of each conjugate pair.

    Shapes:   u: (batch, length, width, r) real   A, B, C: (width, n) complex   D: (width,) real, or None for 0
              state: (batch, width, r, n, 2)   lengths: (batch,) int64, where each row ends: its state is the one there,
              and y is 0 beyond; a length below 0 counts as 0, one above ``length`` as ``length``: they are not checked
              here   ->   y like u, and the state after it
    Cost:     O(length width r n) with the states in registers; no memory but the outputs.
    Numerics: step by step in the precision given; a NaN stays in its channel and reaches no earlier step.
    Errors:   InputError for shapes and dtypes that disagree.
    """
    out: tuple[Tensor, Tensor] = _diagonal_scan(u, A, B, C, D, state, lengths)
    return out
