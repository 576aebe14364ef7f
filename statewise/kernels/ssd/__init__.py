"""The scalar-identity state-space model h_t = a_t h_{t-1} + x_t B_t^T, y_t = h_t C_t as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import reads_narrow, refusal_of
from statewise.kernels.ssd import native, pytorch
from statewise.kernels.ssd.reference import Arguments, ssd_differentiable, ssd_reference
from statewise.kernels.stored import refuse_unreal
from statewise.precision import as_dtype, full_precision

__all__ = ["ssd", "ssd_reference"]


def _wrong_counts(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    if sizes["g"] < 1 or sizes["h"] % sizes["g"]:
        return f"groups that divide the {sizes['h']} heads; got {sizes['g']}"
    return None if given["chunk_length"] >= 1 else f"chunk_length of at least 1; got {given['chunk_length']}"


def _refusal(*, x: Tensor, **others: Tensor | None) -> str | None:
    if x.dtype not in (torch.float32, torch.float64):
        return f"x is {x.dtype}, but it needs float32 or float64"
    return refusal_of(x=x, **others)


_STEPS, _GROUPS = "b l h: as h0", "b l g n: as x"
_ssd = register_with_adjoint(
    "ssd",
    "Tensor x, Tensor log_a, Tensor B, Tensor C, Tensor h0, Tensor? dt, Tensor? D, Tensor? segments, int chunk_length",
    native,
    pytorch,
    definition=ssd_differentiable,
    takes={
        "x": "b l h p: narrow h0",
        "log_a": _STEPS,
        "B": _GROUPS,
        "C": _GROUPS,
        "h0": "b h p n: real",
        "dt": _STEPS,
        "D": "h: as h0",
        "segments": "b l: ids",
    },
    gives={"y": "b l h p: as x", "state": "b h p n: as h0"},
    needs=_wrong_counts,
    refusal=_refusal,
    signature=Arguments,
)


def ssd(
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None = None,
    *,
    dt: Tensor | None = None,
    D: Tensor | None = None,
    chunk_length: int = 64,
) -> tuple[Tensor, Tensor]:
    """Scalar-identity state-space model: h_t = exp(log_a_t) h_{t-1} + dt_t x_t B_t^T, y_t = h_t C_t + D x_t.

    Shapes:   x: (batch, length, n_heads, d_head)   log_a: (batch, length, n_heads), <= 0, -inf too
              B, C: (batch, length, n_groups, d_state), each group shared by n_heads / n_groups heads
              h0: (batch, n_heads, d_head, d_state)   ->   y like x, h like h0 (the state after the last step)
              dt: (batch, length, n_heads), None for 1   D: (n_heads,), None for 0
              segments: (batch, length) integers that never fall, h0 being segment 0; nothing passes from one
              segment to the next.
    Cost:     O(length (chunk_length + d_state) d_head) per head, in matrix products; the adjoint three times
              that. Memory above the outputs: in C a state per chunk of a few heads, in the adjoint alone; in
              PyTorch length * chunk_length per head and a state per chunk. C chooses chunks of 64 steps itself, and
              the plain recurrence for a few steps.
    Numerics: computed in float32, or float64 if an input is; y comes in the dtype of x. Decays inside a chunk are
              differences of sums that are kept more exact than the dtype, so that a mild decay is as right after a
              strong one as alone. A log_a below -1000 counts as -1000, whose exponential is 0 likewise; -inf forgets
              all that came before, and its gradient is 0. A NaN or infinity in x stays in its row and head and, in
              C, in its segment, and earlier steps are what they are without it; in PyTorch and Triton it spoils its
              whole chunk and what comes after it, other segments too: masks multiply by zero. In gradients all spoil
              the chunk. In C, the same bits on every run and for any number of threads. Second derivatives go through
              the plain definition.
    Errors:   InputError if the shapes disagree or the numbers are not real floating-point ones; the message gives them.
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 6 and listing 1.
    """
    b, length, h, p = x.shape if x.ndim == 4 else (0, 0, 0, 0)
    g, n = B.shape[2:] if B.ndim == 4 else (0, 0)
    if not (g and h % g == 0 and B.shape == C.shape == (b, length, g, n) and log_a.shape == (b, length, h)):
        raise InputError(
            "ssd needs x (batch, length, heads, d_head), log_a (batch, length, heads), B and C "
            "(batch, length, groups, d_state) with groups dividing heads; "
            f"got {tuple(x.shape)}, {tuple(log_a.shape)}, {tuple(B.shape)}, {tuple(C.shape)}"
        )
    for name, tensor, shape, axes in (
        ("h0", h0, (b, h, p, n), "batch, heads, d_head, d_state"),
        ("dt", dt, (b, length, h), "batch, length, heads"),
        ("D", D, (h,), "heads,"),
        ("segments", segments, (b, length), "batch, length"),
    ):
        if tensor is not None and tensor.shape != shape:
            raise InputError(f"ssd needs {name} of shape {shape} ({axes}); got {tuple(tensor.shape)}")
    refuse_unreal("ssd", x=x, log_a=log_a, B=B, C=C, h0=h0, dt=dt, D=D)
    if chunk_length < 1:
        raise InputError(f"ssd needs chunk_length >= 1; got {chunk_length}")
    return ssd_unchecked(Arguments(x, log_a, B, C, h0, dt, D, segments, chunk_length))


def ssd_unchecked(given: Arguments) -> tuple[Tensor, Tensor]:
    """:func:`ssd` of what its caller has checked; the registered operator holds it against the sizes that it reads."""
    numbers: tuple[Tensor | None, ...] = given[:7]
    dtype = full_precision(*(m.dtype for m in numbers if m is not None))
    is_narrow = dtype == torch.float32 != given.x.dtype == given.B.dtype == given.C.dtype
    if is_narrow and reads_narrow(given.x.device):
        numbers = (
            given.x,
            given.log_a.to(dtype),
            given.B,
            given.C,
            *(m if m is None else m.to(dtype) for m in given[4:7]),
        )
    else:
        numbers = tuple(m if m is None else as_dtype(m, dtype) for m in numbers)
    y, state = _ssd(*numbers, given.segments, given.chunk_length)
    return as_dtype(y, given.x.dtype), state
