"""The fused convolution in Triton, under its interpreter: against its definition in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import compare, long_interpreted, needs_interpreter
from torch import Tensor

import statewise as sw
from statewise import kernels
from statewise.kernels import gpu
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference
from statewise.kernels.fft_convolution.reference import fft_convolution_differentiable
from statewise.kernels.fft_convolution.triton_transform import responses, spectra

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCE = {BF16: 1e-2, FP16: 2e-3}  # of the largest: what rounding takes; the interpreter cuts bfloat16


@pytest.fixture(autouse=True)
def not_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to PyTorch fails."""

    def refuse(*given: object) -> None:
        raise AssertionError("not in Triton")

    # there alone: on a card the check before the first use needs the true one
    monkeypatch.setattr(gpu.module("fft_convolution"), "pytorch", SimpleNamespace(forward=refuse, backward=refuse))


def case(
    batch: int,
    length: int,
    taps: int,
    *,
    width: int = 2,
    p: tuple[int, ...] = (),
    trailing: tuple[int, ...] = (),
    history: bool = False,
    dtype: torch.dtype = BF16,
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(batch, length, width, *trailing), (width, *p, taps), (batch, taps - 1, width, *trailing)]
    u, K, before = (torch.randn(shape, generator=generator) for shape in shapes)
    inputs = [u.to(dtype), K, before.to(dtype)]
    return [m.requires_grad_() for m in inputs[: 3 if history else 2]]


def exactly(u: Tensor, K: Tensor, history: Tensor | None = None) -> Tensor:
    """The definition, fast enough for long sequences: as one FFT in float64."""
    several, trailing = K.ndim == 3, u.shape[3:]
    y = fft_convolution_differentiable(
        u.flatten(3) if trailing else u.unsqueeze(3),
        K if several else K.unsqueeze(1),
        None if history is None else history.flatten(3) if trailing else history.unsqueeze(3),
    )
    return y.reshape(*u.shape[:3], *K.shape[1:-1], *trailing)


def check(inputs: list[Tensor]) -> None:
    compare(fft_convolution, exactly, inputs, TOLERANCE[inputs[0].dtype] / 4)


def test_the_quick_definition_is_the_definition() -> None:
    for inputs in (case(2, 9, 4, p=(2,), trailing=(3,), history=True), case(1, 5, 9)):
        inputs = [m.detach().double() for m in inputs]
        torch.testing.assert_close(exactly(*inputs), fft_convolution_reference(*inputs))


@pytest.mark.parametrize(("half", "n2"), [(32, 32), (64, 32), (16, 64)])
def test_a_response_through_its_spectrum(half: int, n2: int) -> None:
    """The spectrum against its sum, and back."""
    taps = half * n2 - 7
    K = torch.randn(2, taps, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = spectra(K, half, n2)
    assert found.dtype == torch.float32
    frequency = torch.arange(half).double()[:, None] + 2 * half * torch.arange(n2) + 0.5
    angles = -2 * torch.pi * frequency[..., None] * torch.arange(taps, dtype=torch.float64) / (2 * half * n2)
    want = torch.stack([K @ angles.cos().flatten(0, 1).mT, K @ angles.sin().flatten(0, 1).mT], 1)
    torch.testing.assert_close(found.double().flatten(2), want, atol=1e-6 * float(want.abs().max()), rtol=0)
    torch.testing.assert_close(responses(found, taps).double(), K, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_one_window(dtype: torch.dtype) -> None:
    for inputs in (
        case(1, 1, 1, dtype=dtype),
        case(2, 70, 70, dtype=dtype),
        case(1, 1024, 1024, width=1, dtype=dtype),
        case(3, 40, 25, p=(2,), trailing=(2,), dtype=dtype),
        case(2, 33, 9, history=True, dtype=dtype),
        case(1, 3, 40, p=(2,), history=True, dtype=dtype),
    ):
        check(inputs)


@pytest.mark.parametrize("length", [1500, 3000, 7000])
def test_every_size_of_window(length: int) -> None:
    check(case(1, length, length, width=1))


@long_interpreted
def test_several_windows() -> None:
    check(case(1, 20000, 5, width=1))
    check(case(2, 5000, 300, p=(2,), width=1, history=True))
    check(case(1, 18000, 2000, width=1, trailing=(2,), dtype=FP16))
    check(case(1, 17000, 8192, width=1))


def test_sums_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "processors", lambda device: 10)
    monkeypatch.setattr("statewise.kernels.fft_convolution.triton._LEAST_WINDOWS", 1)
    check(case(5, 60, 60, width=3))


def test_rows_of_every_size_keep_their_digits() -> None:
    """A row's rounding is its own, a channel's too, however large the others are, and constants and tones are no worse
    than noise."""
    length = 2048
    time = torch.arange(length)
    rows = torch.stack([torch.ones(length), (time * 0.7).sin(), torch.randn(length), 1.0 * (time == 5)])
    for size in (1e-30, 1.0, 1e30):
        u = (rows[:, :, None] * torch.tensor([size, 1e-20])).to(BF16)
        K = torch.stack([torch.exp(-time / 300), 1e-9 * torch.exp(-time / 9) * time.cos()])
        want = exactly(u.double(), K.double())
        got = fft_convolution(u, K).double()
        error = ((got - want).abs().amax(1) / want.abs().amax(1)).max()
        assert error < TOLERANCE[BF16]


def test_what_is_no_number_stays_in_its_row_and_channel() -> None:
    u, K = (m.detach() for m in case(3, 50, 50))
    want = fft_convolution(u, K)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        spoilt = u.clone()
        spoilt[1, 20, 0] = wrong
        got = fft_convolution(spoilt, K)
        assert got[1, :, 0].isnan().all()
        got[1, :, 0] = want[1, :, 0]
        assert torch.equal(got, want)
    filters = K.clone()
    filters[1, 3] = torch.nan
    got = fft_convolution(u, filters)
    assert got[:, :, 1].isnan().all()
    assert torch.equal(got[:, :, 0], want[:, :, 0])
    u[2, 0, 0] = torch.inf
    leaf = K.requires_grad_()
    (slope,) = torch.autograd.grad(fft_convolution(u, leaf).nan_to_num().sum(), leaf)
    assert slope[0].isnan().all()
    assert slope[1].isfinite().all()


def test_filters_and_inputs_of_nothing() -> None:
    u, K = (m.detach() for m in case(2, 50, 50))
    assert not fft_convolution(u, torch.zeros_like(K)).any()
    assert not fft_convolution(torch.zeros_like(u), K).any()


def test_the_same_bits_on_every_run_and_in_every_batch() -> None:
    inputs = case(3, 60, 60)

    def run(u: Tensor, K: Tensor) -> list[Tensor]:
        y = fft_convolution(u, K)
        return [y, *torch.autograd.grad(y.float().square().sum(), (u, K))]

    first, again = run(*inputs), run(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    alone = run(inputs[0][1:2].detach().requires_grad_(), inputs[1])
    assert torch.equal(alone[0], first[0][1:2])
    assert torch.equal(alone[1], first[1][1:2])


@pytest.mark.parametrize("config", [sw.S4Config(d_state=32), sw.S4DConfig(bidirectional=True)], ids=["S4", "S4D"])
def test_layers_of_16_bits_reach_it(config: sw.S4Config | sw.S4DConfig) -> None:
    layer = config.build(8).to(BF16)
    x = torch.randn(2, 40, 8, dtype=BF16, requires_grad=True)
    y = layer(x)[0]
    got = [y, *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])]
    with kernels.use("torch"):
        y = layer(x)[0]
        want = [y, *torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])]
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=5e-2 * float(b.detach().abs().max()), rtol=3e-2)  # both round
    with pytest.raises(AssertionError, match="not in Triton"):
        config.build(8)(x.detach().float())


def test_what_pytorch_computes() -> None:
    """Float32, a state of another dtype, a filter that is too long, and nothing at all."""
    u, K, history = (m.detach() for m in case(1, 20, 4, history=True))
    for given in ((u.float(), K), (u, K, history.float())):
        with pytest.raises(AssertionError, match="not in Triton"):
            fft_convolution(*given)
    with pytest.raises(AssertionError, match="not in Triton"):
        fft_convolution(torch.zeros(1, 8193, 1, dtype=BF16), torch.zeros(1, 8193))
    with pytest.raises(AssertionError, match="not in Triton"):
        fft_convolution(u[:0], K)
