"""Every operator that is registered with PyTorch, given anything that its schema lets pass: a result, or one line.

Where the process loads a library built with sanitizers (``--sanitize``), what reads or writes beyond an array ends it.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from typing import Any

import torch
from torch import Tensor

import statewise.reproduce.long_convolution  # noqa: F401 (registers operators)
from fuzz.draw import Draw, Finding
from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.registration import IMPLEMENTATIONS

for _module in pkgutil.iter_modules(kernels.__path__):
    importlib.import_module(f"statewise.kernels.{_module.name}")  # each registers its operators
NAMES = sorted(name.removeprefix("statewise::") for name in IMPLEMENTATIONS)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]
REAL, PAIRS = torch.float32, torch.complex64
SIZES = [0, 1, 1, 2, 2, 3, 5, 8, 17]
LONG = [*SIZES, 33, 64, 70]
WHOLE = [-(2**63), -(2**40), -7, -1, 0, 1, 2, 3, 7, 64, 2**40, 2**63 - 1]
FLOATS = [0.0, 1e-5, -1.0, math.inf, math.nan, 1e300]


def check(draw: Draw) -> None:
    name = draw.choice(NAMES, "operator")
    operator = getattr(torch.ops.statewise, name).default
    given = fitting(draw, name)
    for i, argument in enumerate(operator._schema.arguments):
        if draw.chance(0.15):
            given[i] = hostile(draw, str(argument.type), given[i])
        elif isinstance(given[i], Tensor):
            given[i] = draw.laid_out(given[i])
        draw.note(argument.name, described(given[i]))
    path = draw.choice(["auto", "torch"] if native.available() else ["torch"], "path")
    learns = draw.chance(0.3, "learns")
    try:
        with kernels.use(path), torch.set_grad_enabled(learns):
            run(operator, given, learns)
    except (InputError, RuntimeError, TypeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and text.startswith("statewise::"):
            return  # PyTorch's own check of the schema, in lines of its own
        if "\n" in text or (isinstance(error, InputError) and len(text) > 400):
            raise Finding(f"{name}: {type(error).__name__} of {len(text)} characters: {text[:200]!r}") from error


def run(operator: Any, given: list[Any], learns: bool) -> None:
    if learns:
        given = [
            m.detach().requires_grad_() if isinstance(m, Tensor) and (m.is_floating_point() or m.is_complex()) else m
            for m in given
        ]
    outputs = operator(*given)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    for y in outputs:
        y.detach().clone()  # reads all of it
    if learns:
        total = [y.real.float().nansum() for y in outputs if y.requires_grad]
        if total:
            torch.stack(total).sum().backward()


def described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} strides {value.stride()} at {value.storage_offset()}"


def fitting(draw: Draw, name: str) -> list[Any]:
    """Arguments that fit, of small sizes."""
    l, w, n, k = draw.choice(LONG), *(draw.choice(SIZES) for _ in range(3))
    b, p, t = (draw.choice(SIZES[:6]) for _ in range(3))
    g = draw.choice([1, 1, 2])
    narrow = draw.choice([REAL, REAL, torch.float64, torch.bfloat16])
    wide = torch.float64 if narrow == torch.float64 else REAL
    pairs = torch.complex128 if wide == torch.float64 else PAIRS

    def real(*shape: int) -> Tensor:
        return draw.normal(*shape, dtype=wide)

    def stored(*shape: int) -> Tensor:
        return draw.normal(*shape, dtype=narrow)

    def number(*shape: int) -> Tensor:
        return torch.complex(draw.normal(*shape), draw.normal(*shape)).to(pairs)

    def maybe(m: Tensor) -> Tensor | None:
        return m if draw.chance(0.5) else None

    base, is_backward = name.removesuffix("_backward"), name.endswith("_backward")
    flag, segments = draw.chance(0.5), torch.arange(l).expand(b, l) // 5
    if base in ("fft_convolution", "block_fft_convolution"):
        taps = draw.choice([1, 2, 5, 40])
        given: list[Any] = [real(b, l, w, t), real(w, p, taps), maybe(real(b, taps - 1, w, t))]
        grads = [real(b, l, w, p, t)]
    elif base == "cauchy":
        given = [number(w, k, n), number(draw.choice([1, w]), l), number(w, n)]
        grads = [number(w, k, l)]
        given += [flag] if is_backward else []
    elif base == "vandermonde":
        of = number if flag else real
        given = [of(w, p, n), of(w, n) / 3, l]
        grads = [real(w, p, l)]
    elif base == "diagonal_scan":
        ends = torch.full((b,), draw.choice([-5, 0, l // 2, l, 10**6]))
        given = [stored(b, l, w, t), *(number(w, n) / 3 for _ in range(3)), maybe(real(w)), real(b, w, t, n, 2)]
        given += [maybe(ends)]
        grads = [stored(b, l, w, t), real(b, w, t, n, 2)]
    elif base == "linear_scan":
        of = number if flag else real
        given, grads = [of(b, l, w) / 3, of(b, l, w), of(b, w)], [of(b, l, w)]
    elif base in ("rms_norm", "gated_rms_norm"):
        width = w * g
        x = [stored(b, l, width)] + ([stored(b, l, width)] if base == "gated_rms_norm" else [])
        given = [*x, real(draw.choice([1, 1, b]), width), 1e-5, *([g, flag] if base == "gated_rms_norm" else [])]
        grads = [stored(b, l, width)]
    elif base == "gelu_tanh":
        given, grads = [stored(b, l, w)], [stored(b, l, w)]
    elif base == "linear":
        given, grads = [real(b, k), real(w, k), maybe(real(w))], []
    elif base in ("linear_cross_entropy", "linear_cross_entropy_sum"):
        targets = torch.randint(0, max(w, 1), (b,), generator=draw.generator)
        given = [stored(b, k), stored(w, k), targets, *([real(b), flag] if base.endswith("sum") else [])]
        grads = []
    elif base == "short_convolution":
        taps = draw.choice([1, 2, 4, 9])
        more = draw.choice([(), (t,)])
        given = [stored(b, l, w, *more), real(w, taps), real(b, taps - 1, w, *more), maybe(real(w))]
        given += [maybe(segments), flag]
        grads = [stored(b, l, w, *more)]
    elif base == "selective_scan":
        d, pair = w * g, (2,) if flag else ()
        given = [stored(b, l, d), stored(b, l, d), -real(d, n, *pair).abs(), real(b, l, g, n, *pair)]
        given += [real(b, l, g, n, *pair), real(b, d, n, *pair), maybe(real(d)), maybe(stored(b, l, d)), maybe(real(d))]
        given += [maybe(segments), draw.chance(0.5), draw.chance(0.5), *([] if is_backward else [draw.chance(0.5)])]
        chunks = draw.choice([0, -(-l // 32)])
        grads = [stored(b, l, d), real(b, d, n, *pair), real(b, chunks, *pair, n, d)]
    elif base == "ssd":
        h = w * g
        given = [real(b, l, h, p), -real(b, l, h).abs(), real(b, l, g, n), real(b, l, g, n), real(b, h, p, n)]
        given += [maybe(real(b, l, h)), maybe(real(b, h)), maybe(segments), draw.choice([1, 16, 64])]
        grads = [real(b, l, h, p), real(b, h, p, n)]
    elif base == "diagonal_rank_one":
        keys = [real(b, l, w, n) / 3 for _ in range(4)]
        given = [real(b, l, w, p), *keys[:2], -real(b, l, w, draw.choice([1, n])).abs(), real(b, w, p, n)]
        given += [None, None, real(b, l, w)] if flag else [keys[2], maybe(keys[3]), None]
        given += [draw.choice([1, 16, 64])]
        grads = [real(b, l, w, p), real(b, w, p, n)]
    elif base == "kalman":
        rows, steps, k = draw.choice([1, b]), draw.choice([1, l]), p + n
        masks = [maybe(torch.ones(b, l, p, dtype=torch.bool)), maybe(torch.full((b,), l // 2)), maybe(segments > 1)]
        given = [real(b, l, p), real(rows, steps, k, n), real(1, l, k, k + 1), real(b, 1, k), real(b, n)]
        given += [real(rows, n, n), real(1, n), real(rows, n, n), *masks]
        own = rows > 1 or any(m is not None for m in masks)
        given.append(b if own else min(b, 1))
        found = [real(b, l, n), real(given[-1], l, n, n), real(b, l, p), real(given[-1], l, p, p), real(b, l)]
        grads = []
        given += [*found, maybe(found[0]), maybe(found[2]), maybe(found[4])] if is_backward else []
    else:
        raise Finding(f"{name}: an operator that this target does not know; say in fitting() what it takes")
    return [*grads, *given] if is_backward else given


def hostile(draw: Draw, kind: str, was: Any) -> Any:
    """Another argument of the type that the schema has."""
    if "Tensor" in kind:
        return hostile_tensor(draw, was)
    among: list[Any] = {"int": WHOLE, "SymInt": WHOLE, "float": FLOATS, "bool": [True, False]}[kind]
    return draw.choice(among)


def hostile_tensor(draw: Draw, was: Any) -> Any:
    shape = [draw.choice(SIZES) for _ in range(draw.integer(0, 5))]
    if not isinstance(was, Tensor):
        return draw.choice([None, draw.normal(*shape, dtype=draw.choice(DTYPES))])
    how = draw.integer(0, 9)
    if how == 0:
        return draw.normal(*shape, dtype=was.dtype) if was.is_floating_point() else was.new_zeros(shape)
    if how == 1:
        return was.reshape(-1)[:1].reshape(()) if was.numel() else was.new_zeros(())
    if how == 2 and was.ndim:  # one axis of another size
        i = draw.integer(0, was.ndim - 1)
        return was.narrow(i, 0, draw.integer(0, was.shape[i]))
    if how == 3 and was.ndim:  # one that seems larger
        i = draw.integer(0, was.ndim - 1)
        size = draw.choice([2, 3, 100])
        one = was.narrow(i, 0, min(1, was.shape[i]))
        return one.expand(*was.shape[:i], size * one.shape[i], *was.shape[i + 1 :])
    if how == 4:
        return was.to(draw.choice(DTYPES + INTEGERS))
    if how == 5:
        return was.unsqueeze(draw.integer(0, was.ndim))
    if how == 6 and was.ndim:
        return was.select(draw.integer(0, was.ndim - 1), 0) if 0 not in was.shape else was.new_zeros(was.shape[1:])
    if how == 7:
        value = draw.choice([-1, 7, 10**6, 2**40, -(2**62), 2**62 - 1])
        return was.new_full(was.shape, value) if was.dtype == torch.int64 else torch.full_like(was, math.nan)
    if how == 8:
        return was.to_sparse() if was.ndim and was.dtype in (torch.float32, torch.float64) else was.to("meta")
    if was.is_floating_point():  # the negative is a mark that is not in memory yet
        return torch._neg_view(was)
    return was.conj() if was.is_complex() else was
