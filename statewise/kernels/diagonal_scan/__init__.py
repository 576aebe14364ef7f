"""A diagonal time-invariant system over a whole sequence, from a state to a state: for reading a prompt."""

from __future__ import annotations

from torch import Tensor

from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.diagonal_scan import native, pytorch
from statewise.kernels.diagonal_scan.reference import diagonal_scan_reference

__all__ = ["diagonal_scan", "diagonal_scan_reference", "refusal"]

refusal = native.refusal


_diagonal_scan = register_with_adjoint(
    "diagonal_scan",
    "Tensor u, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor state, Tensor? lengths",
    native,
    pytorch,
    definition=diagonal_scan_reference,
    takes={
        "u": "b l w r: narrow state",
        **dict.fromkeys("ABC", "w n: pairs state"),
        "D": "w: as state",
        "state": "b w r n 2: real",
        "lengths": "b: int64",
    },
    gives={"y": "b l w r: as u", "state": "b w r n 2: as state"},
    refusal=lambda u, A, **others: refusal(u, A),
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
    Cost:     O(length width r n) with the states in registers; no memory but the outputs, and that of u and y
              in float32 on the CPU if they are narrower.
    Numerics: step by step in the precision of the state, float32 or float64; u may be bfloat16 or float16 beside
              float32, and y is rounded to its dtype. A NaN stays in its channel and reaches no earlier step.
    Errors:   InputError for shapes and dtypes that disagree.
    """
    out: tuple[Tensor, Tensor] = _diagonal_scan(u, A, B, C, D, state, lengths)
    return out
