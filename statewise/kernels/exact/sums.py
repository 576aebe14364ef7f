"""Sums in one order: neighbours are added, then neighbours of these, whatever the place in memory and the number of
threads.

So the sum over an axis depends on its numbers alone, and zeros behind them change nothing. Below a rule operations are
PyTorch's own, each of one rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact.pointwise import apply


def in_pairs(x: Tensor, dim: int = -1) -> Tensor:
    """The sum over one axis: neighbours are added, and so on; an odd number at the end waits."""
    length = x.shape[dim]
    if length == 0:
        return x.sum(dim)
    x = x.movedim(dim, 0)
    while length > 1:
        even = length // 2 * 2
        total = x[0:even:2] + x[1:even:2]
        if length % 2:
            total = torch.cat([total, x[even:]])
        x, length = total, len(total)
    return x[0]


def over(x: Tensor, dims: Sequence[int] | None, keepdim: bool = False) -> Tensor:
    """The sum over axes, all of them if ``dims`` is None or empty, the last first."""
    axes = sorted({d % x.ndim for d in dims} if dims else range(x.ndim), reverse=True)
    for axis in axes:
        x = in_pairs(x, axis)
        if keepdim:
            x = x.unsqueeze(axis)
    return x.clone() if not axes else x


def _dims(args: Any, kwargs: Any) -> tuple[list[int] | None, bool]:
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    return ([dims] if isinstance(dims, int) else dims), bool(keepdim)


def _sum(func: Any, args: Any, kwargs: Any) -> Tensor:
    x = args[0]
    if not x.is_floating_point() and not x.is_complex():
        y: Tensor = func(*args, **kwargs)
        return y
    dtype = kwargs.get("dtype")
    return over(x if dtype is None else x.to(dtype), *_dims(args, kwargs))


def _mean(func: Any, args: Any, kwargs: Any) -> Tensor:
    x = args[0]
    x = x if (dtype := kwargs.get("dtype")) is None else x.to(dtype)
    total = over(x, *_dims(args, kwargs))
    return total / (x.numel() // max(total.numel(), 1))


def _var(func: Any, args: Any, kwargs: Any) -> Tensor:
    x = args[0]
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    correction = kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    axes = dims if dims else list(range(x.ndim))
    count = 1
    for d in axes:
        count *= x.shape[d]
    middle = x - over(x, axes, True) / count
    return over(middle * middle, axes, kwargs.get("keepdim", False)) / (count - correction)


def _cumsum(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Over the last axis, which is not time; over another one the rounding would depend on where a call begins."""
    x, dim = args[0], args[1] % max(args[0].ndim, 1)
    if (not x.is_floating_point() and not x.is_complex()) or not x.ndim or x.shape[dim] < 2:
        y: Tensor = func(*args, **kwargs)
        return y
    if dim != x.ndim - 1 or x.ndim < 2:
        raise InputError(
            "exact mode has no exact form of a running sum of fractions, whose rounding depends on where it begins"
        )
    sums = [x[..., 0]]
    for number in x.unbind(-1)[1:]:
        sums.append(sums[-1] + number)
    return torch.stack(sums, -1)


def _softmax(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, dim = args[0], args[1]
    weights = apply("exp", x - x.amax(dim, keepdim=True))
    return weights / in_pairs(weights, dim).unsqueeze(dim)


def _softmax_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, y, dim = args[:3]
    return y * (grad - in_pairs(grad * y, dim).unsqueeze(dim))


def _log_softmax(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, dim = args[0], args[1]
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - apply("log", in_pairs(apply("exp", shifted), dim)).unsqueeze(dim)


def _log_softmax_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, y, dim = args[:3]
    return grad - apply("exp", y) * in_pairs(grad, dim).unsqueeze(dim)


def _logsumexp(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, dims = args[0], list(args[1])
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    most = x.amax(dims, keepdim=True)
    most = most.masked_fill(most.isinf(), 0)
    y = apply("log", over(apply("exp", x - most), dims, True)) + most
    return y if keepdim else y.squeeze(dims)


def _layer_norm(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, shape, weight, bias, epsilon = args
    axes, count = _last(shape)
    mean = over(x, axes, True) / count
    middle = x - mean
    scale = (over(middle * middle, axes, True) / count + epsilon).sqrt().reciprocal()
    y = middle * scale
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, scale


def _layer_norm_backward(func: Any, args: Any, kwargs: Any) -> tuple[Tensor | None, ...]:
    grad, x, shape, mean, scale, weight, _, wanted = args
    axes, count = _last(shape)
    normed = (x - mean) * scale
    slope = grad if weight is None else grad * weight
    inner, along = over(slope, axes, True) / count, over(slope * normed, axes, True) / count
    rows = list(range(x.ndim - len(shape)))
    return (
        scale * ((slope - inner) - normed * along) if wanted[0] else None,
        over(grad * normed, rows) if wanted[1] else None,
        over(grad, rows) if wanted[2] else None,
    )


def _rms_norm(func: Any, args: Any, kwargs: Any) -> Any:
    x, shape, weight, epsilon = args
    axes, count = _last(shape)
    epsilon = torch.finfo(x.dtype).eps if epsilon is None else epsilon
    scale = (over(x * x, axes, True) / count + epsilon).sqrt().reciprocal()
    y = x * scale
    return (y if weight is None else y * weight), scale


def _rms_norm_backward(func: Any, args: Any, kwargs: Any) -> Any:
    grad, x, shape, scale, weight, wanted = args
    axes, count = _last(shape)
    normed = x * scale
    slope = grad if weight is None else grad * weight
    along = over(slope * normed, axes, True) / count
    rows = list(range(x.ndim - len(shape)))
    return scale * (slope - normed * along) if wanted[0] else None, over(grad * normed, rows) if wanted[1] else None


def _last(shape: Sequence[int]) -> tuple[list[int], int]:
    count = 1
    for size in shape:
        count *= size
    return [-1 - i for i in range(len(shape))], count


def _norm(func: Any, args: Any, kwargs: Any) -> Tensor:
    x = args[0]
    order = args[1] if len(args) > 1 else 2
    dims = args[2] if len(args) > 2 else None
    keepdim = args[3] if len(args) > 3 else kwargs.get("keepdim", False)
    if order not in (2, 2.0, None) or x.is_complex():
        raise InputError(f"exact mode has no exact form of a norm of order {order} of {x.dtype}")
    x = x if (dtype := kwargs.get("dtype")) is None else x.to(dtype)
    return over(x * x, [dims] if isinstance(dims, int) else dims, keepdim).sqrt()


def _embedding_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Sums of rows, in the order of the tokens: one thread."""
    grad, tokens, n_rows, padding, by_frequency = args
    if by_frequency:
        raise InputError(
            "exact mode has no exact form of the gradient of an embedding with scale_grad_by_freq=True; leave it out"
        )
    y = grad.new_zeros(n_rows, grad.shape[-1])
    before = torch.get_num_threads()
    flat, rows = tokens.reshape(-1), grad.reshape(-1, grad.shape[-1])
    if padding >= 0:
        flat, rows = flat[flat != padding], rows[flat != padding]
    torch.set_num_threads(1)
    try:
        return y.index_add_(0, flat, rows)
    finally:
        torch.set_num_threads(before)


def one_thread(func: Any, args: Any, kwargs: Any) -> Any:
    """Sums of few numbers for each place, in their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_num_threads(before)


def _index_put(func: Any, args: Any, kwargs: Any) -> Any:
    """Where it accumulates, as the gradient of x[index] does, it adds several numbers in one place."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    return one_thread(func, args, kwargs) if accumulate else func(*args, **kwargs)


CALLED = (one_thread, _index_put)  # which call the operation itself


def complex_operation(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation with complex numbers by operations with real ones, each with one rounding."""
    name = func._schema.name.split("::")[1]
    base = name.rstrip("_")
    if base in ("add", "sub", "neg", "eq", "ne", "isnan", "isfinite", "isinf", "rsub"):
        return func(*args, **kwargs)
    if base == "sgn":
        size = complex_operation(torch.ops.aten.abs.default, args, {})
        return _times(args[0], torch.where(size > 0, size.reciprocal(), 0.0))
    if base not in ("mul", "div", "reciprocal", "abs"):
        raise InputError(f"exact mode has no exact form of {base} of complex numbers")
    if base == "abs":
        return (args[0].real * args[0].real + args[0].imag * args[0].imag).sqrt()
    x, y = (1.0, args[0]) if base == "reciprocal" else args[:2]
    found = _times(x, y) if base == "mul" else _over(x, y)
    return args[0].copy_(found) if name.endswith("_") else found


def _parts(x: Any) -> tuple[Any, Any]:
    if isinstance(x, Tensor):
        return (x.real, x.imag) if x.is_complex() else (x, None)
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _times(x: Any, y: Any) -> Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is None:
        return torch.complex(a * c, b * c)
    if b is None:
        return torch.complex(a * c, a * d)
    return torch.complex(a * c - b * d, a * d + b * c)


def _over(x: Any, y: Any) -> Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is None:
        return torch.complex(a / c, b / c)
    size = c * c + d * d
    if b is None:
        return torch.complex((a * c) / size, -(a * d) / size)
    return torch.complex((a * c + b * d) / size, (b * c - a * d) / size)


RULES: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "cumsum": _cumsum,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "linalg_vector_norm": _norm,
    "embedding_dense_backward": _embedding_backward,
    "index_add": one_thread,
    "index_put": _index_put,
    "scatter_add": one_thread,
    "nll_loss_forward": one_thread,
    "nll_loss_backward": one_thread,
    "nll_loss2d_forward": one_thread,
    "nll_loss2d_backward": one_thread,
}
