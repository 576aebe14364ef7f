"""fft_convolution, vandermonde, cauchy: equal to their definitions, as accurate as they say, no big temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.cauchy import cauchy, cauchy_reference
from statewise.kernels.cauchy import pytorch as cauchy_in_pytorch
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference, sizes
from statewise.kernels.fft_convolution import pytorch as overlap_save
from statewise.kernels.vandermonde import pytorch as vandermonde_in_pytorch
from statewise.kernels.vandermonde import vandermonde, vandermonde_reference

D, Z = torch.float64, torch.complex128
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


@pytest.fixture(autouse=True, params=["torch", "c"])
def _each_path_on_poisoned_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch.empty gives NaN, so that a kernel that reads what it did not write is found out."""
    if request.param == "c" and not native.available():
        pytest.skip(f"no C kernels: {native.why_not()}")
    torch.use_deterministic_algorithms(True)
    with kernels.use(request.param):
        yield
    torch.use_deterministic_algorithms(False)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = D) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def convolution_case(
    length: int, taps: int, p: tuple[int, ...] = (), trailing: Any = (), history: bool = False
) -> Case:
    inputs = leaves((2, length, 3, *trailing), (3, *p, taps), (2, taps - 1, 3, *trailing))
    return fft_convolution, fft_convolution_reference, inputs if history else inputs[:2]


def vandermonde_case(length: int, p: tuple[int, ...] = (), dtype: torch.dtype = Z, n: int = 3) -> Case:
    c, A = leaves((2, *p, n), (2, n), dtype=dtype)
    A = A.detach() / A.detach().abs().clamp(min=1)
    A[0, 0] = 0
    return partial(vandermonde, length=length), partial(vandermonde_reference, length=length), [c, A.requires_grad_()]


def cauchy_case(nodes: int, own: bool = False, k: int = 2, n: int = 3) -> Case:
    return cauchy, cauchy_reference, leaves((2, k, n), (2, nodes) if own else (nodes,), (2, n), dtype=Z)


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
    w, n, length = 32, 64, 4096
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
