"""fft_convolution, vandermonde, cauchy: equal to their definitions, as accurate as they say, no big temporaries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lti_kernels import Case, D, Z, cauchy_case, leaves, vandermonde_case
from torch import Tensor

from statewise.kernels.cauchy import cauchy
from statewise.kernels.cauchy import pytorch as cauchy_in_pytorch
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference, sizes
from statewise.kernels.vandermonde import pytorch as vandermonde_in_pytorch
from statewise.kernels.vandermonde import vandermonde

pytestmark = pytest.mark.usefixtures("each_path", "poisoned_memory")


def convolution_case(
    length: int, taps: int, p: tuple[int, ...] = (), trailing: Any = (), history: bool = False
) -> Case:
    inputs = leaves((2, length, 3, *trailing), (3, *p, taps), (2, taps - 1, 3, *trailing))
    return fft_convolution, fft_convolution_reference, inputs if history else inputs[:2]


def agree(case: Case, atol: float = 1e-12) -> None:
    """Values and all gradients of a fixed function of the output."""
    fast, definition, inputs = case
    results = []
    for run in (fast, definition):
        y = run(*inputs)
        total = (y * torch.sin(torch.arange(y.numel(), dtype=D) + 1).reshape(y.shape)).sum()
        total = (total.real + 2 * total.imag if total.is_complex() else total) + 0 * sum(i.abs().sum() for i in inputs)
        results.append((y, *torch.autograd.grad(total, inputs)))
    for got, want in zip(*results):
        scale = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got, want, atol=atol * scale, rtol=0)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(("p", "trailing"), [((), ()), ((), (2,)), ((2,), ()), ((1,), (3, 2)), ((2,), (2,))])
def test_fft_convolution_is_the_convolution(p: tuple[int, ...], trailing: tuple[int, ...], history: bool) -> None:
    for length in (0, 1, 2, 7, 32, 37):
        for taps in (1, 2, 5, 37, 50):
            agree(convolution_case(length, taps, p, trailing, history))


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(("length", "taps"), [(3001, 1), (5000, 20), (7000, 150)])
def test_overlap_save(length: int, taps: int, history: bool) -> None:
    """Sequences much longer than the filter, in chunks."""
    assert sizes.n_fft(length, taps) < length

    def direct(u: Tensor, K: Tensor, before: Tensor | None = None) -> Tensor:
        past = torch.cat([u.new_zeros(2, taps - 1, 3) if before is None else before, u], 1)
        return torch.nn.functional.conv1d(past.mT, K.flip(1).unsqueeze(1), groups=3).mT

    fast, _, inputs = convolution_case(length, taps, history=history)
    agree((fast, direct, inputs))


def test_fft_sizes() -> None:
    for n in [*range(1, 300), 8191, 9999, 100_001]:
        size = sizes.fast_size(n)
        assert n <= size <= max(1.2 * n, n + 3)
        assert size % 2 == 0
        for prime in (2, 3, 5):
            while size % prime == 0:
                size //= prime
        assert size == 1
    assert sizes.n_fft(4096, 4096) == 8192
    assert sizes.n_fft(10**6, 64) < 2**14


@pytest.mark.parametrize("dtype", [D, Z])
@pytest.mark.parametrize("p", [(), (1,), (3,)])
def test_vandermonde_is_the_sum_of_powers(p: tuple[int, ...], dtype: torch.dtype) -> None:
    for length in (0, 1, 2, 3, 4, 5, 16, 31, 64, 100):
        agree(vandermonde_case(length, p, dtype))
    agree(vandermonde_case(9, p, dtype, n=1))


@pytest.mark.parametrize("own", [False, True])
def test_cauchy_is_the_sum_of_fractions(own: bool) -> None:
    for nodes in (0, 1, 2, 33):
        for k in (1, 4):
            agree(cauchy_case(nodes, own, k))
    agree(cauchy_case(5, own, n=1))


def test_mixed_real_and_complex() -> None:
    """A real c with complex A is a complex c without imaginary part."""
    c, A = leaves((2, 3), (2, 3))
    complex_A = A.detach().to(Z).requires_grad_()
    got, want = vandermonde(c, complex_A, 7), 2 * vandermonde(c, A, 7)
    torch.testing.assert_close(got, want)
    for g in torch.autograd.grad(got.sum(), (c, complex_A)):
        assert g.isfinite().all()


def test_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the channels, nodes and rows are divided into blocks, the result is the same."""
    for numbers in (1, 40, 100):
        monkeypatch.setattr(cauchy_in_pytorch, "_BLOCK", numbers)
        monkeypatch.setattr(vandermonde_in_pytorch, "_BLOCK", numbers)
        monkeypatch.setattr(sizes, "_BLOCK", numbers)
        monkeypatch.setattr(sizes, "_AT_LEAST", 1)
        monkeypatch.setattr(sizes, "_GROUP", 3 * numbers)
        for own in (False, True):
            agree(cauchy_case(50, own))
        agree(vandermonde_case(50))
        agree(vandermonde_case(50, (2,), D))
        agree(convolution_case(20, 15, (2,), (2,)))
        agree(convolution_case(20, 15, history=True))
        agree(convolution_case(1300, 9))


DERIVATIVES: dict[str, Callable[[], Case]] = {
    "fft_convolution": lambda: convolution_case(4, 3, (2,), (2,)),
    "fft_convolution history": lambda: convolution_case(3, 4, history=True),
    "vandermonde real": lambda: vandermonde_case(5, (2,), D, n=2),
    "vandermonde complex": lambda: vandermonde_case(5, n=2),
    "cauchy": lambda: cauchy_case(3, n=2),
    "cauchy own nodes": lambda: cauchy_case(2, True, n=1),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_first_and_second_derivatives(name: str) -> None:
    fast, _, inputs = DERIVATIVES[name]()
    assert torch.autograd.gradcheck(fast, inputs)
    assert torch.autograd.gradgradcheck(fast, inputs)


def operator_arguments(name: str) -> tuple[Any, ...]:
    """Sample arguments of the registered operators, in their own layouts."""
    u, K, history = leaves((2, 7, 3, 2), (3, 2, 4), (2, 3, 3, 2))
    c, A = vandermonde_case(7, (2,))[2]
    v, z, Lambda = cauchy_case(5, True)[2]
    grads = {key: torch.randn(shape, dtype=t) for key, shape, t in (("u", (2, 7, 3, 2, 2), D), ("c", (2, 2, 7), D))}
    return {
        "fft_convolution": (u, K, history),
        "fft_convolution_backward": (grads["u"], u, K, history),
        "vandermonde": (c, A, 7),
        "vandermonde_backward": (grads["c"], c, A, 7),
        "cauchy": (v, z, Lambda),
        "cauchy_backward": (torch.randn(2, 2, 5, dtype=Z), v, z, Lambda, True),
    }[name]


@pytest.mark.parametrize("name", ["fft_convolution", "vandermonde", "cauchy"])
@pytest.mark.parametrize("adjoint", [False, True])
def test_opcheck(name: str, adjoint: bool) -> None:
    name = name + "_backward" if adjoint else name
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if not adjoint:  # its own derivative is the definition's, which gradgradcheck covers
        checks.append("test_aot_dispatch_dynamic")
    operator = getattr(torch.ops.statewise, name).default
    results = torch.library.opcheck(operator, operator_arguments(name), test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


def test_compiled_as_one_graph() -> None:
    def run(u: Tensor, c: Tensor, A: Tensor, v: Tensor, z: Tensor) -> Tensor:
        K = vandermonde(c, A, u.shape[1]) + cauchy(v, z, A)[:, 0].real[:, :1]
        return fft_convolution(u, K)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (9, 12):
        inputs = [*leaves((2, length, 2)), *vandermonde_case(5)[2], *cauchy_case(5)[2][:2]]
        inputs[2] = (inputs[2].detach() + 0.1).requires_grad_()
        want, got = run(*inputs), compiled(*inputs)
        torch.testing.assert_close(got, want)
        weight = torch.randn_like(want)
        for a, b in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (got, want))):
            torch.testing.assert_close(a, b)


def test_layouts() -> None:
    """Strided, expanded, conjugated and frozen inputs give what their copies give."""
    u, K, _ = (m.detach() for m in leaves((2, 9, 3, 2), (3, 2, 5), ()))
    want = fft_convolution(u, K)
    strided = u.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0), K.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    torch.testing.assert_close(fft_convolution(*strided), want)
    torch.testing.assert_close(
        fft_convolution(u[:, :1, :, :1].expand_as(u), K[:1].expand_as(K)),
        fft_convolution(u[:, :1, :, :1].expand_as(u).clone(), K[:1].expand_as(K).clone()),
    )
    _, _, (c, A) = vandermonde_case(9)
    torch.testing.assert_close(vandermonde(c.conj(), A.conj(), 9), vandermonde(c, A, 9))
    torch.testing.assert_close(vandermonde(c.mT.contiguous().mT, A[:1].expand(2, -1), 9)[0], vandermonde(c, A, 9)[0])
    _, _, (v, z, Lambda) = cauchy_case(9)
    out = cauchy(v.conj(), z.conj(), Lambda.conj())
    torch.testing.assert_close(out.conj(), cauchy(v, z, Lambda))
    torch.testing.assert_close(cauchy(v, z.expand(2, -1), Lambda), cauchy(v, z, Lambda))
    for frozen, inputs in (
        (fft_convolution, [u, K]),
        (partial(vandermonde, length=5), [c, A]),
        (cauchy, [v, z, Lambda]),
    ):
        for only in range(len(inputs)):
            some = [m.detach().requires_grad_(i == only) for i, m in enumerate(inputs)]
            assert torch.autograd.grad(frozen(*some).abs().sum(), some[only])[0].isfinite().all()
