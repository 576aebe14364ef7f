"""The diagonal scan in C (diagonal_scan.c): channels in the lanes of vectors, states in registers.

A narrower u is widened before, and its y rounded after.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.backend import refusal_of
from statewise.kernels.stored import plain
from statewise.native.memory import empty

# Of the scratch memory, as the sources in C have them; LANES is the most of any instruction set
PLANES, LANES, STATES = 8, 16, 2
BACKWARD_PLANES, BLOCK = 16, 64


def refusal(u: Tensor, A: Tensor) -> str | None:
    """Why C cannot take these; None if it can."""
    if u.dtype == torch.float64 or A.dtype != torch.complex64:
        return f"u is {u.dtype} and A {A.dtype}, but it needs float32 or narrower, and complex64"
    return refusal_of(u=u, A=A)


def forward(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    batch, length, width, r = u.shape
    n, n_threads = A.shape[1], native.n_threads()
    y, after = empty(*u.shape, dtype=torch.float32), empty(*state.shape, dtype=state.dtype)
    scratch = torch.empty(n_threads * PLANES * (n + n % STATES) * LANES)
    others = [None if m is None else plain(m) for m in (D, state, lengths)]
    numbers = [torch.view_as_real(plain(m)) for m in (A, B, 2 * C)]
    native.function("diagonal_scan", None, "ppppppppppllllll")(
        *(plain(u.float()), *numbers, *others, y, after, scratch, batch, length, width * r, r, n, n_threads)
    )
    return y.to(u.dtype), after


def backward(
    grad_y: Tensor,
    grad_state: Tensor,
    u: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of u, A, B, C, D and the state."""
    batch, length, width, r = u.shape
    n, n_threads = A.shape[1], native.n_threads()
    du, d_state = empty(*u.shape, dtype=torch.float32), empty(*state.shape, dtype=state.dtype)
    dA, dB, dC = (torch.empty(batch, width, r, n, 2) for _ in "ABC")
    dD = torch.empty(batch, width, r)
    scratch = torch.empty(n_threads * (BACKWARD_PLANES + 2 * -(-length // BLOCK)) * n * LANES)
    others = [None if m is None else plain(m) for m in (D, state, lengths)]
    numbers = [torch.view_as_real(plain(m)) for m in (A, B, 2 * C)]
    native.function("diagonal_scan_backward", None, "ppppppppppppppppllllll")(
        *(plain(grad_y.float()), plain(grad_state), plain(u.float()), *numbers, *others),
        *(du, dA, dB, dC, dD, d_state, scratch, batch, length, width * r, r, n, n_threads),
    )
    dA, dB, dC = (torch.view_as_complex(m.sum((0, 2))) for m in (dA, dB, 2 * dC))
    return du.to(u.dtype), dA, dB, dC, None if D is None else dD.sum((0, 2)), d_state
