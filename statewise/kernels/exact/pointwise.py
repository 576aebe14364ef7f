"""Functions of single numbers in C, the same wherever the number lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError

# as pointwise.inc.h counts them
_NAMES = "exp sigmoid softplus silu silu_backward log log1p expm1 sin cos tanh erf pow exp2 log2"
_SAME = 17  # from here on softplus(x) is x in float32, so that a threshold changes nothing
FUNCTIONS = {name: i for i, name in enumerate(_NAMES.split())}


def apply(name: str, x: Tensor, other: Tensor | None = None) -> Tensor:
    """f(x), or with ``other`` what that function says, number by number.

    Errors:  InputError for a dtype or a device that C does not take.
    """
    if x.is_meta:  # a shape, as a model is built of before its tensors are read
        return x.new_empty(torch.broadcast_shapes(x.shape, () if other is None else other.shape))
    if x.dtype not in (torch.float32, torch.float64) or x.device.type != "cpu":
        raise InputError(f"exact mode computes {name} of float32 or float64 on the CPU, got {x.dtype} on {x.device}")
    x = x.contiguous()
    if other is not None:
        other = torch.broadcast_to(torch.as_tensor(other, dtype=x.dtype), x.shape).contiguous()
    y = torch.empty_like(x)
    if x.numel():
        native.function("pointwise", x.dtype, "ppplll")(x, other, y, FUNCTIONS[name], x.numel(), native.n_threads())
    return y


def _simple(name: str) -> Callable[..., Any]:
    def rule(func: Any, args: Any, kwargs: Any) -> Any:
        x = args[0]
        if x.is_complex():
            return _complex(name, x)
        if not x.is_floating_point():
            x = x.to(torch.get_default_dtype())
        return apply(name, x)

    return rule


def _complex(name: str, x: Tensor) -> Tensor:
    size, phase = x.real, x.imag
    if name == "expm1":  # e^a cos b - 1 = expm1(a) cos b - 2 sin^2(b / 2)
        half = apply("sin", phase * 0.5)
        less = apply("expm1", size) * apply("cos", phase) - 2 * (half * half)
        return torch.complex(less, apply("exp", size) * apply("sin", phase))
    if name != "exp":
        raise InputError(f"exact mode has no exact form of {name} of complex numbers")
    size = apply("exp", size)
    return torch.complex(size * apply("cos", phase), size * apply("sin", phase))


def _softplus(func: Any, args: Any, kwargs: Any) -> Tensor:
    x: Tensor = args[0]
    beta, threshold = args[1] if len(args) > 1 else 1, args[2] if len(args) > 2 else 20
    if beta != 1:
        raise InputError(f"exact mode computes softplus with beta=1, got {beta}")
    y = apply("softplus", x)
    return torch.where(x > threshold, x, y) if threshold < _SAME else y


def _softplus_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad: Tensor = args[0]
    x, _, threshold = args[1:]
    slope = grad * apply("sigmoid", x)
    return torch.where(x > threshold, grad, slope) if threshold < _SAME else slope


def _sigmoid_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, y = args
    return grad * (y * (1 - y))


def _tanh_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, y = args
    return grad * (1 - y * y)


def _silu_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, x = args
    return apply("silu_backward", x, grad)


def _log_sigmoid(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    return -apply("softplus", -args[0]), args[0].new_empty(0)


def _log_sigmoid_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    return args[0] * apply("sigmoid", -args[1])


def _pow(func: Any, args: Any, kwargs: Any) -> Any:
    x, power = args
    if not isinstance(x, Tensor):  # a number to powers
        return apply("pow", torch.full_like(power, x), power)
    if not x.is_floating_point() and not x.is_complex():
        return func(*args)
    if isinstance(power, (int, float)):
        if power == 1:
            return x.clone()
        if power == 2:
            return x * x
        if power == 3:
            return x * x * x
        if power == 0.5:
            return x.sqrt()
        if power == -1:
            return x.reciprocal()
        if power == 0:
            return torch.ones_like(x)
    if x.is_complex():
        raise InputError(f"exact mode has no exact form of powers of complex numbers, got the exponent {power}")
    return apply("pow", x, power)


def _rsqrt(func: Any, args: Any, kwargs: Any) -> Tensor:
    return args[0].sqrt().reciprocal()


def _gelu(func: Any, args: Any, kwargs: Any) -> Tensor:
    x = args[0]
    if kwargs.get("approximate", "none") == "tanh":
        return x * apply("sigmoid", 1.5957691216057308 * (x + 0.044715 * (x * x * x)))
    return 0.5 * (x * (1 + apply("erf", x * 0.7071067811865476)))


def _gelu_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, x = args
    if kwargs.get("approximate", "none") == "tanh":
        s = apply("sigmoid", 1.5957691216057308 * (x + 0.044715 * (x * x * x)))
        slope = 1.5957691216057308 * (1 + 0.134145 * (x * x))
        return grad * (s + x * (s * (1 - s) * slope))
    below = 0.5 * (1 + apply("erf", x * 0.7071067811865476))
    return grad * (below + x * (0.3989422804014327 * apply("exp", -0.5 * (x * x))))


def _addcmul(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, a, b = args
    product = a * b
    value = kwargs.get("value", 1)
    return x + (product if value == 1 else product * value)


def _addcdiv(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, a, b = args
    share = a / b
    value = kwargs.get("value", 1)
    return x + (share if value == 1 else share * value)


def _lerp(func: Any, args: Any, kwargs: Any) -> Tensor:
    begin, end, weight = args
    return begin + (end - begin) * weight


def _logaddexp(func: Any, args: Any, kwargs: Any) -> Tensor:
    a, b = torch.broadcast_tensors(*args)
    high = torch.maximum(a, b)
    rest = apply("softplus", -(a - b).abs())
    return torch.where(high.isinf(), high, high + rest)


def _elu(func: Any, args: Any, kwargs: Any) -> Tensor:
    numbers = (*args[1:], 1, 1, 1)
    x, alpha, scale, input_scale = args[0], *numbers[:3]
    if (scale, input_scale) != (1, 1):
        raise InputError("exact mode computes ELU with scale=1 and input_scale=1")
    y: Tensor = torch.where(x > 0, x, apply("expm1", x) * alpha)
    return y


def _elu_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, alpha, scale, input_scale, is_result, x = args
    if (scale, input_scale) != (1, 1):
        raise InputError("exact mode computes ELU with scale=1 and input_scale=1")
    slope = x + alpha if is_result else apply("exp", x) * alpha
    return grad * torch.where(x > 0, torch.ones_like(x), slope)


def _glu(func: Any, args: Any, kwargs: Any) -> Tensor:
    x, gate = args[0].chunk(2, args[1] if len(args) > 1 else -1)
    return x * apply("sigmoid", gate)


def _glu_backward(func: Any, args: Any, kwargs: Any) -> Tensor:
    grad, both, dim = args
    x, gate = both.chunk(2, dim)
    share = apply("sigmoid", gate)
    return torch.cat([grad * share, grad * (x * (share * (1 - share)))], dim)


UNARY: dict[str, Callable[..., Any]] = {
    **{
        name: _simple(name)
        for name in ["exp", "sigmoid", "silu", "log", "log1p", "expm1", "sin", "cos", "tanh", "erf", "exp2", "log2"]
    },
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "sigmoid_backward": _sigmoid_backward,
    "tanh_backward": _tanh_backward,
    "silu_backward": _silu_backward,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "pow": _pow,
    "rsqrt": _rsqrt,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "logaddexp": _logaddexp,
    "elu": _elu,
    "glu": _glu,
    "glu_backward": _glu_backward,
    "elu_backward": _elu_backward,
}
