"""The diagonal scan in C (diagonal_scan.c): channels in the lanes of vectors, states in registers."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.backend import refusal_of
from statewise.kernels.stored import plain
from statewise.native.memory import empty

PLANES, LANES, STATES = 8, 16, 2  # of the scratch memory, as diagonal_scan.c has them; LANES is the most of any set


def refusal(u: Tensor, A: Tensor) -> str | None:
    """Why C cannot take these; None if it can."""
    if u.dtype != torch.float32 or A.dtype != torch.complex64:
        return f"u is {u.dtype} and A {A.dtype}, but it needs float32 and complex64"
    return refusal_of(u=u, A=A)


def forward(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    batch, length, width, r = u.shape
    n, n_threads = A.shape[1], native.n_threads()
    y, after = empty(*u.shape, dtype=u.dtype), empty(*state.shape, dtype=state.dtype)
    scratch = torch.empty(n_threads * PLANES * (n + n % STATES) * LANES)
    others = [None if m is None else plain(m) for m in (D, state, lengths)]
    numbers = [torch.view_as_real(plain(m)) for m in (A, B, 2 * C)]
    native.function("diagonal_scan", None, "ppppppppppllllll")(
        *(plain(u), *numbers, *others, y, after, scratch, batch, length, width * r, r, n, n_threads)
    )
    return y, after
