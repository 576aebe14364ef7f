"""fft_convolution, vandermonde, cauchy: how exact they are, what memory they take, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from lti_kernels import D, Z, cauchy_case, leaves, vandermonde_case
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.errors import InputError
from statewise.kernels.cauchy import cauchy, cauchy_reference
from statewise.kernels.cauchy import pytorch as cauchy_in_pytorch
from statewise.kernels.fft_convolution import fft_convolution
from statewise.kernels.fft_convolution import pytorch as overlap_save
from statewise.kernels.vandermonde import pytorch as vandermonde_in_pytorch
from statewise.kernels.vandermonde import vandermonde

pytestmark = pytest.mark.usefixtures("each_path", "poisoned_memory")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_dtypes_are_widened(dtype: torch.dtype) -> None:
    u, K = (m.detach().to(dtype) for m in leaves((2, 50, 3), (3, 50)))
    u, K = u.requires_grad_(), (K / 50).detach().requires_grad_()
    y = fft_convolution(u, K)
    assert y.dtype == dtype
    want = fft_convolution(u.double(), K.double())
    torch.testing.assert_close(y.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-6)
    gradients = torch.autograd.grad(y.sum(), (u, K))
    assert [g.dtype for g in gradients] == [dtype, dtype]
    for got, exact in zip(gradients, torch.autograd.grad(want.sum(), (u, K))):
        torch.testing.assert_close(got, exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    c, A = (torch.rand(2, 3, 4) * 0.9).to(dtype)
    assert vandermonde(c, A, 20).dtype == torch.float32
    torch.testing.assert_close(
        vandermonde(c, A, 20).double(), vandermonde(c.double(), A.double(), 20), atol=1e-5, rtol=0
    )


def test_autocast_leaves_the_precision_alone() -> None:
    u, K = (m.detach().float() for m in leaves((2, 50, 3), (3, 50)))
    c, A = (m.detach().to(torch.complex64) for m in vandermonde_case(40)[2])
    v, z, Lambda = (m.detach().to(torch.complex64) for m in cauchy_case(40)[2])
    want = fft_convolution(u, K), vandermonde(c, A, 40), cauchy(v, z, Lambda)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fft_convolution(u, K), vandermonde(c, A, 40), cauchy(v, z, Lambda)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_the_convolution_is_as_accurate_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    for length, taps in ((4096, 4096), (20_000, 100), (9973, 5000)):
        u = torch.randn(1, length, 2, generator=generator)
        u[:, : length // 2] *= 1e-4  # the rounding is relative to the large half
        K = torch.randn(2, taps, generator=generator)
        past = torch.nn.functional.pad(u.double().mT, (taps - 1, 0))
        want = torch.nn.functional.conv1d(past, K.double().flip(1).unsqueeze(1), groups=2).mT
        scale = K.double().abs().sum(1) * u.abs().max()
        assert ((fft_convolution(u, K) - want).abs() / scale).max() < 1e-6
        assert ((fft_convolution(u.double(), K) - want).abs() / scale).max() < 2e-15


def test_16384_powers_on_the_unit_circle_are_exact_to_rounding() -> None:
    length, times = 16_384, [0, 1, 2, 3, 127, 128, 4095, 8191, 8192, 12_345, 16_383]
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(6, 4, dtype=D, generator=generator) * 2 * torch.pi
    A = torch.polar(torch.tensor([1.0] * 4 + [0.999, 0.9], dtype=D)[:, None].expand(6, 4), angles)
    c = torch.randn(6, 4, dtype=Z, generator=generator)
    K, narrow = vandermonde(c, A, length), vandermonde(c.to(torch.complex64), A.to(torch.complex64), length)
    wide = vandermonde(c.to(torch.complex64).to(Z), A.to(torch.complex64).to(Z), length)
    assert (narrow - wide).abs().max() < 1e-6 * wide.abs().max()
    with mpmath.workprec(200):
        for channel in range(6):
            terms = [(mpmath.mpc(a), mpmath.mpc(b)) for a, b in zip(c[channel].tolist(), A[channel].tolist())]
            exact = [float(2 * mpmath.re(sum(a * b**t for a, b in terms))) for t in times]
            error = (K[channel, times] - torch.tensor(exact, dtype=D)).abs().max()
            assert error < 1e-14 * K[channel].abs().max()


def test_real_powers_are_exact_to_rounding() -> None:
    A = torch.tensor([[1.0, -1.0, 0.99999, -0.9999, 0.0, 1e-200]], dtype=D).mT
    K = vandermonde(torch.ones_like(A), A, 16_384)
    with mpmath.workprec(200):
        for channel, a in enumerate(A.flatten().tolist()):
            for t in (0, 1, 2, 1000, 9999, 16_383):
                exact = float(mpmath.mpf(a) ** t)
                assert abs(K[channel, t] - exact) <= 1e-14 * abs(exact)


def test_decayed_powers_are_zero_and_their_gradients_finite() -> None:
    c, A = torch.ones(1, 2, dtype=Z, requires_grad=True), torch.tensor([[0j, 1e-30j]], dtype=Z, requires_grad=True)
    K = vandermonde(c, A, 300)
    assert K[0, 0] == 4
    assert (K[0, 20:] == 0).all()
    gradients = torch.autograd.grad(K[0, 1], (c, A), retain_graph=True)
    torch.testing.assert_close(gradients[1], torch.full((1, 2), 2, dtype=Z))
    assert all(g.isfinite().all() for g in torch.autograd.grad(K.sum(), (c, A)))


def test_cauchy_in_float32_near_the_poles() -> None:
    """HiPPO's poles lie at -1/2 + i q with q up to 1,300: z^2 - 2 Re(L) z + |L|^2 would lose three digits there."""
    q = torch.linspace(1, 1300, 32, dtype=D)
    Lambda = torch.complex(torch.full((4, 32), -0.5, dtype=D), q.expand(4, 32)).to(torch.complex64)
    z = torch.cat([1j * q, 1j * torch.linspace(0, 5000, 400, dtype=D)]).to(torch.complex64)
    v = torch.randn(4, 2, 32, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    outcomes = []
    for run, dtype in ((cauchy, torch.complex64), (cauchy_reference, Z)):
        inputs = [m.to(dtype).requires_grad_() for m in (v, z, Lambda)]
        out = run(*inputs)
        total = (out * torch.sin(torch.arange(432))).sum()
        outcomes.append((out, *torch.autograd.grad(total.real + total.imag, inputs)))
    for got, want in zip(*outcomes):
        assert (got - want).abs().max() < 2e-6 * want.abs().max()


class LargestTensor(TorchDispatchMode):
    """How many numbers the tensors hold that operations return, in ascending order."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [m for m in pytree.tree_leaves(out) if isinstance(m, Tensor)]
        self.sizes = sorted({*self.sizes, *(m.untyped_storage().nbytes() // m.element_size() for m in tensors)})
        return out


def test_nothing_as_large_as_the_states_is_made() -> None:
    """No temporary of (width, n, length), and none much above the outputs: neither forward nor backward."""
    w, n, length = 64, 64, 4096
    c, A = (m.detach().to(torch.complex64) for m in leaves((w, 1, n), (w, n), dtype=Z))
    A = A / A.abs().clamp(min=1)
    with LargestTensor() as largest:
        vandermonde_in_pytorch.backward(vandermonde_in_pytorch.forward(c, A, length), c, A, length)
    assert largest.sizes[-1] <= w * n * length // 16
    z = torch.complex(torch.zeros(length), torch.linspace(0, 9, length)).unsqueeze(0)
    with LargestTensor() as largest:
        cauchy_in_pytorch.backward(cauchy_in_pytorch.forward(c, z, A), c, z, A, True)
    assert largest.sizes[-1] <= w * n * length // 8


def test_memory_above_input_and_output_does_not_grow_with_the_length() -> None:
    """A sequence far longer than the filter goes through in chunks."""
    K, found = torch.randn(4, 1, 100), []
    for length in (100_000, 200_000):
        u = torch.randn(1, length, 4, 1)
        with LargestTensor() as largest:
            y = overlap_save.forward(u, K, None)
            overlap_save.backward(y, u, K, None)
        assert largest.sizes[-1] == u.numel()  # the outputs themselves
        found.append(max(size for size in largest.sizes if size < u.numel()))
    assert found[0] == found[1] < 2**16


@pytest.mark.parametrize(
    "call",
    [
        lambda: fft_convolution(torch.ones(1, 3), torch.ones(3, 4)),
        lambda: fft_convolution(torch.ones(1, 3, 2), torch.ones(3, 4)),
        lambda: fft_convolution(torch.ones(1, 3, 2), torch.ones(2, 0)),
        lambda: fft_convolution(torch.ones(1, 3, 2), torch.ones(2, 4), torch.ones(1, 4, 2)),
        lambda: fft_convolution(torch.ones(1, 3, 2, dtype=Z), torch.ones(2, 4)),
        lambda: vandermonde(torch.ones(2, 3), torch.ones(3, 3), 4),
        lambda: vandermonde(torch.ones(3), torch.ones(3), 4),
        lambda: vandermonde(torch.ones(3, 3), torch.ones(3, 3), -1),
        lambda: cauchy(torch.ones(2, 3, dtype=Z), torch.ones(4, dtype=Z), torch.ones(2, 3, dtype=Z)),
        lambda: cauchy(torch.ones(2, 1, 3, dtype=Z), torch.ones(3, 4, dtype=Z), torch.ones(2, 3, dtype=Z)),
        lambda: cauchy(torch.ones(2, 1, 3, dtype=Z), torch.ones(4), torch.ones(2, 3, dtype=Z)),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit_are_refused(call: Callable) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    assert "got" in str(error.value)
