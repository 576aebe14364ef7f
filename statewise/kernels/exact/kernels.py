"""The package's own kernels in exact mode: those whose C has the property, and what runs for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import without_none
from statewise.kernels.backend import backend
from statewise.kernels.exact.products import times
from statewise.kernels.ssd import ordered
from statewise.kernels.ssd.reference import Arguments

# Their C goes step by step, or row by row, in one order: `AS_IT_IS` is the exact path.
AS_IT_IS = (
    "selective_scan",
    "selective_scan_backward",
    "linear_scan",
    "linear_scan_backward",
    "diagonal_scan",
    "diagonal_scan_backward",
    "short_convolution",
    "rms_norm",
    "rms_norm_backward",
    "gated_rms_norm",
    "gated_rms_norm_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "vandermonde",
    "vandermonde_backward",
    "cauchy",
    "cauchy_backward",
    "fft_convolution_backward",
    "linear_cross_entropy",
    "linear_cross_entropy_sum",
)


def _in_c(func: Any, args: Any, kwargs: Any) -> Any:
    first = next(m for m in args if isinstance(m, Tensor))
    if first.device.type != "cpu" or backend() not in ("auto", "c"):
        raise InputError(
            f"exact mode runs {func._schema.name} in C on the CPU; got {first.dtype} on {first.device.type}, with "
            f'kernels "{backend()}"'
        )
    return func(*args, **kwargs)


def _linear(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, weight, bias = args
    return times(x, weight.t(), bias)


def _ssd(func: Any, args: Any, kwargs: Any) -> Any:
    return ordered.forward(Arguments(*args))


def _ssd_backward(func: Any, args: Any, kwargs: Any) -> Any:
    grad_y, grad_state, *given = args
    return without_none(ordered.backward(grad_y, grad_state, Arguments(*given)), grad_y)


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(AS_IT_IS, _in_c),
    "linear": _linear,
    "ssd": _ssd,
    "ssd_backward": _ssd_backward,
}
