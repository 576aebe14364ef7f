"""The causal convolution y_t = sum_i K_i u_{t-i} with a long filter, by FFT, as one differentiable operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import c_runs
from statewise.kernels.fft_convolution import block_convolution, native, pytorch
from statewise.kernels.fft_convolution.reference import fft_convolution_differentiable, fft_convolution_reference
from statewise.kernels.registration import register

__all__ = ["block_fft_convolution", "fft_convolution", "fft_convolution_reference"]

Gradients = tuple[Tensor, Tensor, Tensor | None]


_TAKES = {"u": "b l w t: floating", "impulse_response": "w p taps: floating", "history": "b taps-1 w t: floating"}


def _no_taps(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    return None if sizes["taps"] else "a filter of at least one tap; got none"


def _forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    path = native if c_runs("fft_convolution", native.refusal(u, K=K, history=history)) else pytorch
    return path.forward(u, K, history)


def _adjoint(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> Gradients:
    path = native if c_runs("fft_convolution", native.refusal(u, grad=grad, K=K, history=history)) else pytorch
    return path.backward(grad, u, K, history)


def _fake_forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    b, l, w, t = u.shape
    return torch.empty(b, l, w, K.shape[1], t, dtype=u.dtype, device=u.device)


def _fake_adjoint(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    du, dK = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (u, K))
    if history is None:
        return du, dK, torch.empty(0, dtype=u.dtype, device=u.device)
    return du, dK, torch.empty(history.shape, dtype=history.dtype, device=u.device)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the plain form: rare, so it need not be fast."""
    grad, u, K, history = ctx.saved_tensors
    with torch.enable_grad():
        leaves = [m.detach().requires_grad_() for m in (grad, u, K, history) if m is not None]
        y = fft_convolution_differentiable(leaves[1], leaves[2], leaves[3] if history is not None else None)
        first = torch.autograd.grad(y, leaves[1:], leaves[0], create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(first, leaves, grads[: len(first)], materialize_grads=True)
    return second if history is not None else (*second, None)


def _register(
    name: str, forward: Callable[..., Tensor], adjoint: Callable[..., Gradients]
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """``statewise::name`` and its adjoint, from what computes both of tensors that fit."""

    def run_adjoint(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        du, dK, dhistory = adjoint(grad, u, K, history)
        return du, dK, u.new_empty(0) if dhistory is None else dhistory

    backward = register(
        f"{name}_backward",
        "(Tensor grad, Tensor u, Tensor impulse_response, Tensor? history) -> (Tensor, Tensor, Tensor)",
        run_adjoint,
        takes={"grad": "b l w p t: floating", **_TAKES},
        needs=_no_taps,
        fake=_fake_adjoint,
        setup_context=_setup_context,
        backward=_second_backward,
    )

    def differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        u, K, history = ctx.saved_tensors  # once: gradient checkpointing recomputes them and forbids a second look
        du, dK, dhistory = backward(grad, u, K, history)
        return du, dK, None if history is None else dhistory

    return register(
        name,
        "(Tensor u, Tensor impulse_response, Tensor? history) -> Tensor",
        forward,
        takes=_TAKES,
        needs=_no_taps,
        fake=_fake_forward,
        setup_context=_setup_context,
        backward=differentiate,
    )


_fft_convolution = _register("fft_convolution", _forward, _adjoint)
_block_fft_convolution = _register("block_fft_convolution", block_convolution.forward, block_convolution.backward)


def fft_convolution(u: Tensor, impulse_response: Tensor, history: Tensor | None = None) -> Tensor:
    """Causal convolution with a long filter, by FFT: y_t = sum_{i < taps} K_i u_{t-i}.

    Shapes:   u: (batch, length, width, *trailing)   impulse_response: (width, taps), or (width, p, taps) for p
              outputs of each channel; history: (batch, taps - 1, width, *trailing), the inputs before u, oldest
              first, zero if not given   ->   y: (batch, length, width, *trailing) or (..., width, p, *trailing),
              in the dtype of u.
    Cost:     O(length log taps) for each channel, as one FFT over the sequence, or in chunks of overlap-save where
              the filter is much shorter. Memory above the output: a few times the padded filters and one row of
              the batch, and not more than about 100 MB on a CPU unless one channel alone needs it.
    Numerics: real FFTs in float32, or float64 if an input is; lower dtypes are widened. An FFT's rounding is
              relative to the largest value around: the error is at most about 1e-6 (float32) or 2e-15 (float64)
              of sum_i |K_i| max|u|, also where y itself is small. One NaN in u spoils its chunk and channel.
    Errors:   InputError if shapes or dtypes do not fit; the message gives them.
    Source:   Gu et al. 2022 (S4), arXiv:2111.00396, sec. 2.4; overlap-save: Stockham (1966).

    >>> fft_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]])).flatten()
    tensor([ 1., 11., 11.])
    """
    return _convolve("fft_convolution", _fft_convolution, u, impulse_response, history)


def block_fft_convolution(u: Tensor, impulse_response: Tensor, history: Tensor | None = None) -> Tensor:
    """:func:`fft_convolution` with the FFT split into two dimensions, its small transforms as matrix products.

    Shapes, Errors: as :func:`fft_convolution`.
    Cost:     O(sqrt(taps)) for each step and channel: more operations than an FFT has, in matrix products of at most
              128 rows, which a device may be that much faster at. On a CPU it is not: see docs/kernels.md. The spectra
              of a block of channels are multiplied in the cache and never kept; beside that the matrices are, 4 to 8
              numbers for each point of the transform and each of its N1 <= 64.
    Numerics: as :func:`fft_convolution`, and at most about 2e-6 (float32) or 4e-15 (float64) of sum_i |K_i| max|u|.
    Source:   Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.1 (FlashConv); the definition of the transform is in
              statewise/kernels/fft_convolution/block_fft.py.

    >>> block_fft_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]])).flatten().round(decimals=4)
    tensor([ 1., 11., 11.])
    """
    return _convolve("block_fft_convolution", _block_fft_convolution, u, impulse_response, history)


def _convolve(name: str, operator: Callable[..., Tensor], u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """The registered operator, for arguments as the public functions take them."""
    if u.ndim < 3 or K.ndim not in (2, 3) or K.shape[0] != u.shape[2] or K.shape[-1] < 1:
        raise InputError(
            f"{name} needs u (batch, length, width, ...) and impulse_response (width, taps >= 1) or "
            f"(width, p, taps >= 1); got {tuple(u.shape)}, {tuple(K.shape)}"
        )
    if history is not None and history.shape != (u.shape[0], K.shape[-1] - 1, *u.shape[2:]):
        raise InputError(
            f"{name} needs a history of shape {(u.shape[0], K.shape[-1] - 1, *u.shape[2:])} "
            f"(batch, taps - 1, width, ...); got {tuple(history.shape)}"
        )
    tensors = [m for m in (u, K, history) if m is not None]
    if not all(m.is_floating_point() for m in tensors):
        raise InputError(f"{name} needs real floating-point tensors; got {[str(m.dtype) for m in tensors]}")
    several, trailing = K.ndim == 3, u.shape[3:]
    if history is None:
        K = K[..., : max(u.shape[1], 1)]  # later taps meet no input
    columns = u.reshape(*u.shape[:3], trailing.numel())
    before = None if history is None else history.reshape(*history.shape[:3], trailing.numel())
    y = operator(columns, K if several else K.unsqueeze(1), before)
    return y.reshape(*u.shape[:3], *K.shape[1:-1], *trailing)
