"""Cases of the fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.gated_rms_norm import gated_rms_norm, gated_rms_norm_reference
from statewise.kernels.gelu_tanh import _gelu, gelu_tanh_reference
from statewise.kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from statewise.kernels.rms_norm import rms_norm, rms_norm_reference
from statewise.kernels.short_convolution import short_convolution, short_convolution_reference

D = torch.float64


PATHS = ["torch", *native.instruction_sets()]  # PyTorch, and C for each instruction set that is here


Case = tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


def leaf(*shape: int, dtype: torch.dtype = D) -> Tensor:
    """Random numbers with gaps between the rows, as the parts of a projection have them."""
    wide = torch.randn(*shape[:-1], shape[-1] + 3, dtype=D)
    return wide.to(dtype)[..., 1 : shape[-1] + 1].detach().requires_grad_()


def documents(batch: int, length: int) -> Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) < 0.3).cumsum(1)


def convolution(
    batch: int, length: int, width: int, n_taps: int, *trailing: int, packed: bool, silu: bool, bias: bool
) -> Callable[[torch.dtype], Case]:
    def make(dtype: torch.dtype) -> Case:
        wide = D if dtype == D else torch.float32
        inputs = [leaf(batch, length, width, *trailing, dtype=dtype), leaf(width, n_taps, dtype=wide)]
        inputs += [leaf(batch, n_taps - 1, width, *trailing, dtype=wide)] + [leaf(width, dtype=wide)] * bias
        ids = documents(batch, length) if packed else None

        def call(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
            activation = "silu" if silu else None
            return lambda x, taps, history, offset=None: run(x, taps, history, ids, bias=offset, activation=activation)

        return call(short_convolution), call(short_convolution_reference), inputs

    return make


def norm(*shape: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (rms_norm, rms_norm_reference, [leaf(*shape, dtype=dtype), leaf(shape[-1], dtype=dtype)])


def gelu(*shape: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (_gelu, gelu_tanh_reference, [leaf(*shape, dtype=dtype)])


def gated(*shape: int, n_groups: int, norm_before_gate: bool) -> Callable[[torch.dtype], Case]:
    options: dict[str, Any] = {"n_groups": n_groups, "norm_before_gate": norm_before_gate}

    def make(dtype: torch.dtype) -> Case:
        inputs = [leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype), leaf(shape[-1], dtype=dtype)]
        return (
            lambda x, z, w: gated_rms_norm(x, z, w, **options),
            lambda x, z, w: gated_rms_norm_reference(x, z, w, **options),
            inputs,
        )

    return make


def loss(n: int, d: int, vocab: int, reduction: str) -> Callable[[torch.dtype], Case]:
    def make(dtype: torch.dtype) -> Case:
        # here, not at import: only during a test is what it makes put on the device that it runs on
        targets = torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(n))
        targets[1::5] = -100

        def definition(x: Tensor, weight: Tensor) -> Tensor:
            losses = linear_cross_entropy_reference(x, weight, targets)
            if reduction == "none":
                return losses
            return losses.sum() / ((targets != -100).sum() if reduction == "mean" else 1)

        inputs = [leaf(n, d, dtype=dtype), leaf(vocab, d, dtype=dtype)]
        return (lambda x, w: linear_cross_entropy(x, w, targets, reduction=reduction)), definition, inputs

    return make


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "convolution, trailing axis, packed": convolution(2, 9, 3, 4, 2, packed=True, silu=True, bias=True),
    "convolution, odd width": convolution(1, 75, 37, 4, packed=False, silu=True, bias=True),
    "convolution, one step": convolution(2, 1, 16, 4, packed=False, silu=False, bias=False),
    "convolution, no step": convolution(2, 0, 5, 4, packed=True, silu=True, bias=True),
    "convolution, no row": convolution(0, 3, 5, 4, packed=False, silu=True, bias=True),
    "convolution, seven taps": convolution(3, 70, 19, 7, packed=True, silu=True, bias=True),
    "convolution, more taps than steps": convolution(2, 5, 40, 8, packed=False, silu=False, bias=True),
    "convolution, one tap": convolution(2, 5, 17, 1, packed=True, silu=False, bias=True),
    "convolution, several chunks": convolution(1, 130, 1030, 4, packed=True, silu=True, bias=True),
    "norm": norm(2, 9, 40),
    "norm, one feature": norm(3, 1),
    "norm, odd": norm(70, 37),
    "norm, no row": norm(0, 2, 5),
    "gelu": gelu(2, 70, 37),
    "gelu, several blocks": gelu(3, 6001),
    "gelu, nothing": gelu(0, 3),
    "gated norm": gated(2, 20, 40, n_groups=1, norm_before_gate=False),
    "gated norm, groups": gated(3, 100, n_groups=4, norm_before_gate=False),
    "gated norm, norm first": gated(35, 19, n_groups=1, norm_before_gate=True),
    "gated norm, norm first, groups": gated(2, 2, 66, n_groups=2, norm_before_gate=True),
    "gated norm, no row": gated(2, 0, 6, n_groups=2, norm_before_gate=True),
    "loss, mean": loss(33, 8, 257, "mean"),
    "loss, sum": loss(7, 4, 3, "sum"),
    "loss, each": loss(50, 16, 1000, "none"),
    "loss, one token of one": loss(1, 1, 1, "sum"),
    "loss, no token": loss(0, 3, 5, "sum"),
}


def results(run: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
    y = run(*inputs)
    return [y, *torch.autograd.grad(y, inputs, slope.to(y.dtype), allow_unused=True, materialize_grads=True)]
