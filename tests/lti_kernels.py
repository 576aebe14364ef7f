"""Cases of the kernels of time-invariant systems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from statewise.kernels.cauchy import cauchy, cauchy_reference
from statewise.kernels.vandermonde import vandermonde, vandermonde_reference

D, Z = torch.float64, torch.complex128


Case = tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = D) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def vandermonde_case(length: int, p: tuple[int, ...] = (), dtype: torch.dtype = Z, n: int = 3) -> Case:
    c, A = leaves((2, *p, n), (2, n), dtype=dtype)
    A = A.detach() / A.detach().abs().clamp(min=1)
    A[0, 0] = 0
    return partial(vandermonde, length=length), partial(vandermonde_reference, length=length), [c, A.requires_grad_()]


def cauchy_case(nodes: int, own: bool = False, k: int = 2, n: int = 3) -> Case:
    return cauchy, cauchy_reference, leaves((2, k, n), (2, nodes) if own else (nodes,), (2, n), dtype=Z)


def autocast_rounds_no_second_derivative(convolution: Callable[[Tensor, Tensor], Tensor]) -> None:
    u, K = torch.randn(1, 40, 2, requires_grad=True), torch.randn(2, 20, requires_grad=True)

    def twice() -> tuple[Tensor, ...]:
        y = convolution(u, K)
        (slope,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (u, K))

    want = twice()
    with torch.autocast("cpu", torch.bfloat16):
        got = twice()
    torch.testing.assert_close(got, want)
