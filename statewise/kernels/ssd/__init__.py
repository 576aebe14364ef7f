"""The scalar-identity state-space model h_t = a_t h_{t-1} + x_t B_t^T, y_t = h_t C_t as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import c_runs, refusal_of
from statewise.kernels.registration import register
from statewise.kernels.ssd import native, pytorch
from statewise.kernels.ssd.reference import Arguments, ssd_differentiable, ssd_reference
from statewise.kernels.stored import refuse_unreal

__all__ = ["ssd", "ssd_reference"]

_SCHEMA = (
    "Tensor x, Tensor log_a, Tensor B, Tensor C, Tensor h0, Tensor? dt, Tensor? D, Tensor? segments, int chunk_length"
)


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Room for the outputs."""
    x, h0 = arguments[0], arguments[4]
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(h0.shape, dtype=x.dtype, device=x.device)


_STEPS, _GROUPS = "b l h: as x", "b l g n: as x"
_TAKES = {  # one dtype, and D for each row
    "x": "b l h p: real",
    "log_a": _STEPS,
    "B": _GROUPS,
    "C": _GROUPS,
    "h0": "b h p n: as x",
    "dt": _STEPS,
    "D": "b h: as x",
    "segments": "b l: ids",
}


def _wrong_counts(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    if sizes["g"] < 1 or sizes["h"] % sizes["g"]:
        return f"groups that divide the {sizes['h']} heads; got {sizes['g']}"
    return None if given["chunk_length"] >= 1 else f"chunk_length of at least 1; got {given['chunk_length']}"


def _runs_in_c(given: Arguments) -> bool:
    return c_runs("ssd", refusal_of(**given._asdict()))


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    given, chunk_length = Arguments(*arguments[:-1]), arguments[-1]
    return native.forward(given) if _runs_in_c(given) else pytorch.forward(given, chunk_length)


def _adjoint(grad_y: Tensor, grad_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    given, chunk_length = Arguments(*arguments[:-1]), arguments[-1]
    x = given.x
    if _runs_in_c(given):
        gradients = native.backward(grad_y, grad_state, given)
    else:
        gradients = pytorch.backward(grad_y, grad_state, given, chunk_length)
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _fake_adjoint(grad_y: Tensor, grad_state: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x = arguments[0]
    return tuple(torch.empty(0 if m is None else m.shape, dtype=x.dtype, device=x.device) for m in arguments[:7])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.chunk_length = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad_y: Tensor, grad_state: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    gradients = _ssd_backward(grad_y, grad_state, *tensors, ctx.chunk_length)
    return *(None if m is None else gradient for m, gradient in zip(tensors, gradients)), None, None


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the plain definition: rare, so it need not be fast."""
    *tensors, segments = ctx.saved_tensors
    with torch.enable_grad():
        copies: list[Any] = [None if m is None else m.detach().requires_grad_() for m in tensors]
        grad_y, grad_state, *inputs = copies
        x, log_a, B, C, h0, dt, D = inputs
        outputs = ssd_differentiable(x, log_a, B, C, h0, dt, D, segments, ctx.chunk_length)
        present = [m for m in inputs if m is not None]
        first = torch.autograd.grad(outputs, present, (grad_y, grad_state), create_graph=True, materialize_grads=True)
        wanted = [grad for m, grad in zip(inputs, grads) if m is not None]
        leaves = [m for m in copies if m is not None]
        second = iter(torch.autograd.grad(first, leaves, wanted, materialize_grads=True))
    return *(None if m is None else next(second) for m in copies), None, None


_ssd = register(
    "ssd",
    f"({_SCHEMA}) -> (Tensor, Tensor)",
    _forward,
    takes=_TAKES,
    needs=_wrong_counts,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
)
_ssd_backward = register(
    "ssd_backward",
    f"(Tensor grad_y, Tensor grad_state, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _adjoint,
    takes={"grad_y": "b l h p: as x", "grad_state": "b h p n: as x", **_TAKES},
    needs=_wrong_counts,
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
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
              C, in its segment, and earlier steps are what they are without it; in PyTorch it spoils its whole chunk
              and what comes after it, other segments too: masks multiply by zero. In gradients both spoil the chunk.
              In C, the same bits on every run and for any number of threads. Second derivatives go through the
              plain definition.
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
    return ssd_unchecked(x, log_a, B, C, h0, segments, dt=dt, D=D, chunk_length=chunk_length)


def ssd_unchecked(
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None,
    *,
    dt: Tensor | None,
    D: Tensor | None,
    chunk_length: int,
) -> tuple[Tensor, Tensor]:
    """:func:`ssd` of what its caller has checked; the registered operator holds it against the sizes that it reads."""
    b, h = x.shape[0], x.shape[2]
    dtypes = {m.dtype for m in (x, log_a, B, C, h0, dt, D) if m is not None}
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    wide = (None if m is None else m.to(dtype) for m in (x, log_a, B, C, h0, dt, None if D is None else D.expand(b, h)))
    y, state = _ssd(*wide, segments, chunk_length)
    return y.to(x.dtype), state
