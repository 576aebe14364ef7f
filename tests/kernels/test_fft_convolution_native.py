"""The C code of fft_convolution: every instruction set, shape and stride, threads, and what is not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statewise import kernels, native
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference
from statewise.kernels.fft_convolution import native as implementation

D = torch.float64

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}"),
    pytest.mark.usefixtures("in_c", "poisoned_memory"),
]
each_instruction_set = pytest.mark.parametrize("instructions", native.instruction_sets())


def case(
    batch: int, length: int, width: int, taps: int, *, p: int = 0, trailing: tuple[int, ...] = (), history: bool = False
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length + taps)
    filters = (width, p, taps) if p else (width, taps)
    shapes = [(batch, length, width, *trailing), filters]
    if history:
        shapes.append((batch, taps - 1, width, *trailing))
    return [torch.randn(shape, dtype=D, generator=generator) for shape in shapes]


def outcomes(run: object, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = run(*leaves)  # type: ignore[operator]
    weight = torch.randn(y.shape, dtype=D, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    grads = torch.autograd.grad(y, leaves, weight, allow_unused=True, materialize_grads=True)
    return [y.detach(), *grads]


def check(inputs: list[Tensor], rtol: float = 3e-15) -> None:
    """Equal but for rounding, relative to the largest of all values."""
    exact = outcomes(fft_convolution_reference, [x.double() for x in inputs])
    size = max([1.0, *(float(x.abs().amax()) for x in exact if x.numel())])
    for got, want, like in zip(outcomes(fft_convolution, inputs), exact, [inputs[0], *inputs]):
        assert got.dtype == like.dtype
        torch.testing.assert_close(got.double(), want, atol=4 * rtol * size, rtol=0)


SHAPES = [
    ((1, 1, 1, 1), {}),
    ((2, 7, 3, 7), {}),
    ((1, 9, 16, 2), {}),
    ((3, 20, 17, 5), {"p": 2, "trailing": (3,), "history": True}),
    ((2, 5, 18, 40), {"p": 3, "history": True}),
    ((2, 5, 18, 40), {"trailing": (2, 1)}),
    ((1, 1, 33, 1), {"history": True}),
    ((2, 90, 16, 70), {}),
    ((2, 700, 16, 3), {"history": True}),  # chunks
    ((1, 610, 5, 40), {}),
    ((1, 330, 2, 310), {"history": True}),  # radix 5
]


@each_instruction_set
@pytest.mark.parametrize(("shape", "options"), SHAPES)
def test_equal_to_the_definition(shape: tuple[int, ...], options: dict[str, object], instructions: str) -> None:
    with native.forced(instructions):
        check(case(*shape, **options))  # type: ignore[arg-type]
        check([x.float() for x in case(*shape, **options)], 1e-6)  # type: ignore[arg-type]


@each_instruction_set
@pytest.mark.parametrize("points", [4, 8, 12, 16, 20, 32, 64, 96, 160, 256, 512, 768, 1280, 4096, 8192, 10240])
def test_every_size_of_transform(points: int, instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "_points", lambda length, taps: points)
    u, K, history = case(1, points + 3, 2, points - 2, history=True)
    with native.forced(instructions):
        got = outcomes(fft_convolution, [u, K, history])
    with kernels.use("torch"):
        want = outcomes(fft_convolution, [u, K, history])
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, atol=1e-14 * points, rtol=0)


def test_the_chosen_transforms_hold_the_filter() -> None:
    for length in (1, 2, 3, 50, 1000, 4097, 100_000, 2**31):
        for taps in (1, 2, 100, 4096, 70_000):
            points = implementation._points(length, taps)
            assert 2 * points >= taps
            radices = implementation._radices(points, by_eight=True)
            assert points == torch.tensor(radices).prod()
            assert points == torch.tensor(implementation._radices(points, by_eight=False)).prod()


@each_instruction_set
def test_empty(instructions: str) -> None:
    with native.forced(instructions):
        for shape in ((2, 0, 3, 4), (0, 4, 3, 2), (2, 4, 0, 2)):
            for options in ({}, {"history": True}, {"trailing": (0,)}):
                inputs = case(*shape, **options)  # type: ignore[arg-type]
                for x, like in zip(outcomes(fft_convolution, inputs), (inputs[0], *inputs)):
                    assert x.shape == like.shape
                    assert (x == 0).all()


@each_instruction_set
def test_equal_bits_for_any_number_of_threads(instructions: str) -> None:
    for shape in ((5, 60, 19, 60), (2, 300, 70, 9)):
        inputs = [x.float() for x in case(*shape, history=True)]
        with native.forced(instructions):
            want = outcomes(fft_convolution, inputs)
            for threads in (2, 3, 8):
                torch.set_num_threads(threads)
                try:
                    got = outcomes(fft_convolution, inputs)
                finally:
                    torch.set_num_threads(1)
                assert all(torch.equal(x, y) for x, y in zip(got, want))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@each_instruction_set
def test_what_is_not_finite_stays_in_its_row_and_channel(instructions: str, bad: float) -> None:
    u, K = case(4, 50, 20, 50)
    spoilt = u.clone()
    spoilt[1, 30, 7] = bad
    with native.forced(instructions):
        want, got = outcomes(fft_convolution, [u, K]), outcomes(fft_convolution, [spoilt, K])
    assert not got[0][1, 30:, 7].isfinite().any()
    got[0][1, :, 7] = want[0][1, :, 7]
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])  # du needs no u
    assert not got[2][7].isfinite().all()
    got[2][7] = want[2][7]
    assert torch.equal(got[2], want[2])


def test_the_error_is_relative_to_the_row_and_channel() -> None:
    u, K = case(3, 200, 18, 200)
    u[0] *= 1e30
    u[1] *= 1e-30
    u[:, :, 4] *= 1e-4
    got = fft_convolution(u.float(), K.float()).double()
    want = fft_convolution_reference(u.float().double(), K.float().double())
    size = K.abs().sum(-1) * u.abs().amax(1)  # (batch, width)
    assert ((got - want).abs().amax(1) / size).max() < 1e-6


def test_strides_and_dtypes() -> None:
    u, K, history = case(2, 40, 6, 9, p=2, trailing=(2,), history=True)
    want = outcomes(fft_convolution, [u, K, history])
    strided = [
        u.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        K.flip(2).contiguous().flip(2).mT.contiguous().mT,
        history.expand(1, *history.shape)[0],
    ]
    for x, y in zip(outcomes(fft_convolution, strided), want):
        assert torch.equal(x, y)
    low = [x.to(torch.bfloat16) for x in (u, K, history)]
    got, want = (outcomes(fft_convolution, x) for x in (low, [x.float() for x in low]))
    for x, y in zip(got, want):
        assert x.dtype == torch.bfloat16
        torch.testing.assert_close(x.float(), y, rtol=0.01, atol=0.01 * float(y.abs().max()))


def test_derivatives() -> None:
    inputs = [x.requires_grad_() for x in case(2, 6, 3, 4, p=2, history=True)]
    assert torch.autograd.gradcheck(fft_convolution, inputs)
    assert torch.autograd.gradgradcheck(fft_convolution, inputs)


def test_few_columns_are_left_to_pytorch_unless_c_is_asked_for_by_name() -> None:
    for width, dtype, reason in ((7, torch.float32, True), (8, torch.float32, False), (4, D, False), (3, D, True)):
        u, K = (x.to(dtype).unsqueeze(dim) for x, dim in zip(case(1, 5, width, 5), (3, 1)))
        assert implementation.refusal(u, K=K) is None
        with kernels.use("auto"):
            assert (implementation.refusal(u, K=K) is not None) == reason
