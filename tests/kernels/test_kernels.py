"""Kernels: each equals its definition, in values and derivatives of every order, also on poisoned memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels import describe
from statewise.kernels.linear_scan import linear_scan, linear_scan_reference
from statewise.kernels.short_convolution import short_convolution, short_convolution_reference
from statewise.kernels.ssd import ssd, ssd_reference

D = torch.float64


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = D) -> list[Tensor]:
    torch.manual_seed(len(shapes))
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def scan_case(length: int, dtype: torch.dtype = D) -> tuple[Callable, Callable, list[Tensor]]:
    a, b, h0 = leaves((2, length, 3), (2, length, 3), (2, 3), dtype=dtype)
    a = (a.detach() / 2).requires_grad_()
    return linear_scan, linear_scan_reference, [a, b, h0]


def convolution_case(length: int, segments: bool) -> tuple[Callable, Callable, list[Tensor]]:
    ids = _segments(2, length) if segments else None
    inputs = leaves((2, length, 3, 2), (3, 4), (2, 3, 3, 2))
    return (lambda *i: short_convolution(*i, ids)), (lambda *i: short_convolution_reference(*i, ids)), inputs


def ssd_case(length: int, segments: bool, chunk_length: int = 4) -> tuple[Callable, Callable, list[Tensor]]:
    ids = _segments(2, length) if segments else None
    x, log_a, B, C, h0 = leaves((2, length, 4, 2), (2, length, 4), (2, length, 2, 3), (2, length, 2, 3), (2, 4, 2, 3))
    inputs = [x, (-log_a.detach().abs()).requires_grad_(), B, C, h0]
    return (
        (lambda *i: ssd(*i, ids, chunk_length=chunk_length)),
        (lambda *i: ssd_reference(*i, ids)),
        inputs,
    )


def _segments(batch: int, length: int) -> Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) < 0.3).cumsum(1)


CASES = {
    **{f"linear_scan {n}": lambda n=n: scan_case(n) for n in (0, 1, 5, 16, 37)},
    "linear_scan complex": lambda: scan_case(7, torch.complex128),
    **{f"short_convolution {n} {s}": lambda n=n, s=s: convolution_case(n, s) for n in (0, 1, 9) for s in (False, True)},
    **{f"ssd {n} {s}": lambda n=n, s=s: ssd_case(n, s) for n in (0, 1, 3, 4, 9) for s in (False, True)},
}


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_definition(case: str) -> None:
    fast, definition, inputs = CASES[case]()
    results = []
    for run in (fast, definition):
        outputs = run(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((o * torch.sin(torch.arange(o.numel(), dtype=D)).reshape(o.shape)).sum() for o in outputs)
        total = (total.real if total.is_complex() else total) + 0 * sum(i.abs().sum() for i in inputs)
        results.append((*outputs, *torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)))
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    "case",
    ["linear_scan 5", "linear_scan complex", "short_convolution 9 True", "ssd 9 False", "ssd 9 True", "ssd 3 True"],
)
def test_first_and_second_derivatives(case: str) -> None:
    fast, _, inputs = CASES[case]()
    assert torch.autograd.gradcheck(fast, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(fast, inputs, fast_mode=True)


def test_small_cases_by_full_jacobians() -> None:
    for fast, _, inputs in (scan_case(3), convolution_case(3, True), ssd_case(3, True, chunk_length=2)):
        assert torch.autograd.gradcheck(fast, inputs)
        assert torch.autograd.gradgradcheck(fast, inputs)


@pytest.mark.parametrize(
    "name", ["linear_scan", "short_convolution", "short_convolution_backward", "ssd", "ssd_backward"]
)
def test_opcheck(name: str) -> None:
    ids = _segments(2, 7)
    x, log_a, B, C, h0 = ssd_case(7, True)[2]
    y = ssd(x, log_a, B, C, h0, ids)[0].detach()
    bias = torch.randn(3, dtype=D, requires_grad=True)
    samples = {
        "linear_scan": scan_case(7)[2],
        "short_convolution": [*convolution_case(7, True)[2], bias, ids, True],
        "short_convolution_backward": [
            torch.randn(2, 7, 3, 2, dtype=D),
            *convolution_case(7, True)[2],
            bias,
            ids,
            True,
        ],
        "ssd": [x, log_a, B, C, h0, None, None, ids, 4],
        "ssd_backward": [torch.randn_like(y), torch.randn_like(h0), x, log_a, B, C, h0, None, None, ids, 4],
    }
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if not name.endswith("_backward"):  # its own derivative is the definition's, which gradgradcheck covers
        checks.append("test_aot_dispatch_dynamic")
    operator = getattr(torch.ops.statewise, name).default
    results = torch.library.opcheck(operator, tuple(samples[name]), test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


def test_neighbouring_decays_stay_exact_in_float32_after_strong_ones() -> None:
    """Differences of float32 cumulative sums would lose the small decays that follow large ones."""
    length = 64
    log_a = torch.full((1, length, 1), -1e-3)
    log_a[:, : length // 2] = -300.0
    x, B = torch.ones(1, length, 1, 1), torch.ones(1, length, 1, 1)
    h0 = torch.zeros(1, 1, 1, 1)
    y, _ = ssd(x, log_a, B, B, h0, chunk_length=64)
    want, _ = ssd_reference(x.double(), log_a.double(), B.double(), B.double(), h0.double())
    torch.testing.assert_close(y.double(), want, atol=0, rtol=1e-6)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("decay", [5.0, 20.0, 100.0, 1e4])
def test_the_gradient_of_strong_decays_is_right_in_float32(decay: float, mixed: bool) -> None:
    """A difference of <dy, y> and <dx, x> would leave noise of the size of both."""
    x, B, C = (torch.randn(1, 130, 2, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    log_a = torch.full((1, 130, 2), -decay)
    if mixed:
        log_a[:, torch.arange(130) % 8 != 0] = -1e-3
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))

    def gradient(dtype: torch.dtype, run: Callable) -> Tensor:
        leaf = log_a.to(dtype).requires_grad_()
        y, _ = run(x.to(dtype), leaf, B.to(dtype), C.to(dtype), torch.zeros(1, 2, 8, 8, dtype=dtype))
        return torch.autograd.grad((y * weight.to(dtype)).sum(), leaf)[0].double()

    want = gradient(D, ssd_reference)
    atol = max(float(want.abs().max()) * 2e-6, 1e-30)  # below, float32 has no normal numbers
    torch.testing.assert_close(gradient(torch.float32, ssd), want, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("segments", [False, True])
def test_rows_in_blocks(monkeypatch: pytest.MonkeyPatch, segments: bool) -> None:
    """A batch too large for the cache is computed block by block: here one row and a rest of two."""
    inputs = ssd_case(9, segments)[2]
    inputs = [torch.cat([i, i[:1] / 2]).detach().requires_grad_() for i in inputs]
    ids = torch.cat([_segments(2, 9), _segments(2, 9)[:1]]) if segments else None
    results = []
    for numbers in (2**18, 9 * 4 * 2 * 2, 1):
        monkeypatch.setattr("statewise.kernels.ssd.pytorch.CACHED_NUMBERS", numbers)
        with kernels.use("torch"):
            y, h = ssd(*inputs, ids, chunk_length=4)
        results.append((y, h, *torch.autograd.grad(y.sin().sum() + h.sin().sum(), inputs)))
    y, h = ssd_reference(*inputs, ids)
    results.append((y, h, *torch.autograd.grad(y.sin().sum() + h.sin().sum(), inputs)))
    for got in results[:-1]:
        torch.testing.assert_close(got, results[-1], atol=1e-12, rtol=1e-12)


def test_strong_decays_give_zero_and_finite_gradients() -> None:
    inputs = [i.detach().float() for i in ssd_case(9, False)[2]]
    inputs[1] = inputs[1] * 1e4
    inputs = [i.requires_grad_() for i in inputs]
    y, h = ssd(*inputs, chunk_length=4)
    gradients = torch.autograd.grad(y.sum() + h.sum(), inputs)
    assert all(g.isfinite().all() for g in (y, h, *gradients))


@pytest.mark.parametrize("backend", ["c", "torch"])
def test_second_derivatives_with_decays_that_let_nothing_pass(backend: str) -> None:
    if backend == "c" and not native.available():
        pytest.skip(f"no C kernels: {native.why_not()}")
    fast, definition, inputs = ssd_case(9, False)
    with torch.no_grad():
        inputs[1][:, 2], inputs[1][:, 6] = -torch.inf, -1e30
    results = []
    with kernels.use(backend):
        for run in (fast, definition):
            y, h = run(*inputs)
            first = torch.autograd.grad(y.sin().sum() + h.sin().sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum(m.square().sum() for m in first), inputs)
            results.append((*first, *second))
    for got, want in zip(*results):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-11)
    assert not results[0][1][:, [2, 6]].any()  # the first derivative by log_a is exactly 0 there


def test_nan_propagates_forward_and_stays_in_its_row_and_head() -> None:
    fast, _, inputs = ssd_case(9, False)
    with torch.no_grad():
        inputs[0][0, 5, 1] = torch.nan
        y, _ = fast(*inputs)
    assert y[0, 5:, 1].isnan().all()
    assert y[0, :4].isfinite().all()  # chunks of 4: the NaN is in the second
    assert y[1].isfinite().all()
    assert y[0, :, [0, 2, 3]].isfinite().all()
    for backend in ("c", "torch") if native.available() else ("torch",):
        with torch.no_grad(), kernels.use(backend):
            inputs = ssd_case(9, False)[2]
            inputs[1][0, 5, 1] = torch.nan  # nor do bounds on log_a hide one
            y, _ = fast(*inputs)
        assert y[0, 5:, 1].isnan().all()
        assert y[1].isfinite().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: linear_scan(torch.ones(1, 3), torch.ones(1, 4), torch.ones(1)),
        lambda: linear_scan(torch.ones(1, 3), torch.ones(1, 3, dtype=D), torch.ones(1)),
        lambda: short_convolution(torch.ones(1, 3, 2), torch.ones(3, 4), torch.ones(1, 3, 2)),
        lambda: short_convolution(torch.ones(1, 3, 2), torch.ones(2, 4), torch.ones(1, 4, 2)),
        lambda: ssd(*(torch.ones(1, 3, 2, 2),) * 4, torch.ones(1)),
        lambda: ssd(*(i for i in ssd_case(3, False)[2][:4]), torch.ones(1, dtype=D)),
        lambda: ssd(*ssd_case(3, False)[2], chunk_length=0),
    ],
)
def test_shapes_that_disagree_are_refused(call: Callable) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    assert "got" in str(error.value)


def test_describe_names_every_kernel_and_says_why() -> None:
    folders = {path.parent.name for path in Path(kernels.__file__).parent.glob("*/__init__.py")}
    folders -= {"gpu", "exact", "step"}  # a step is no operation, but several of them for a GPU's decoding
    assert {status.kernel for status in describe()} == folders
    assert all(status.path and status.others for status in describe())
    with kernels.use("torch"):
        for status in describe():
            assert status.path.startswith("PyTorch: ")
            assert status.others["C"].startswith("PyTorch was chosen by kernels.use or STATEWISE_KERNELS")


def test_forward_mode_is_refused_and_never_zero() -> None:
    """PyTorch itself would give a tangent of zero."""
    x = torch.randn(1, 5, 3)
    with pytest.raises(InputError, match="linear_scan has no derivative in forward mode"):
        torch.func.jvp(lambda b: linear_scan(torch.full_like(b, 0.5), b, torch.zeros(1, 3)), (x,), (x,))
