"""Filters with one variance for all numbers: beside the dense model, beside the textbook, and what float32 keeps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statewise.estimation.isotropic import Isotropic, Textbook, information_scan, isotropic_filter, isotropic_reference
from statewise.estimation.model import LinearGaussian
from statewise.operators.masks import Masks, build_masks


def drawn(
    batch: int = 3, length: int = 29, heads: int = 2, n: int = 3, d: int = 2, seed: int = 0
) -> tuple[Tensor, ...]:
    """y, precision with gaps, log_decay, frequency, mean and information."""
    g = torch.Generator().manual_seed(seed)
    y, mean = (
        torch.randn(shape, generator=g, dtype=torch.complex128)
        for shape in ((batch, length, heads, d), (batch, heads, n, d))
    )
    precision = 5 * torch.rand(batch, length, heads, n, generator=g, dtype=torch.float64)
    precision[0, 3:9] = 0
    log_decay = -0.3 * torch.rand(heads, n, generator=g, dtype=torch.float64) - 1e-4
    frequency = torch.randn(heads, n, generator=g, dtype=torch.float64)
    return y, precision, log_decay, frequency, mean, torch.rand(batch, heads, n, generator=g, dtype=torch.float64)


def told(found: Isotropic | Textbook) -> Textbook:
    return Textbook(found.mean, found.forecast, found.information)


def close(found: Isotropic | Textbook, expected: Isotropic | Textbook, tolerance: float = 1e-12) -> None:
    for a, b in zip(told(found), told(expected)):
        torch.testing.assert_close(a.expand_as(b), b, atol=tolerance, rtol=tolerance)


def test_the_definition_is_a_linear_gaussian_model() -> None:
    """With A = |a| times a rotation, Q = (1 - |a|^2) I, C = I, R = I / precision, and the prior N(0, I)."""
    y, precision, log_decay, frequency, *_ = drawn(batch=2, heads=1, n=1, d=1)
    rest = torch.zeros(2, 1, 1, 1, dtype=torch.complex128), torch.zeros(2, 1, 1, dtype=torch.float64)
    found = isotropic_reference(y, precision, log_decay, frequency, *rest)
    eye = torch.eye(2, dtype=torch.float64)
    c, s = math.cos(frequency), math.sin(frequency)
    A = log_decay.exp() * torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    seen = precision[..., 0, :, None] > 0
    R = torch.where(seen, eye / precision[..., 0, :, None], eye)
    model = LinearGaussian(A, (1 - (2 * log_decay).exp()) * eye, eye, R)
    pairs = torch.view_as_real(y)[:, :, 0, 0]
    posterior, _ = model.filter(pairs.where(seen[..., 0], torch.nan), model.initial_state(2), form="recurrent")
    torch.testing.assert_close(torch.view_as_real(found.mean)[:, :, 0, 0, 0], posterior.mean)
    variance = 1 / (1 + found.information[:, :, 0])
    torch.testing.assert_close(variance.unsqueeze(-1) * eye, posterior.covariance)
    innovation = torch.view_as_real(y - found.forecast[:, :, :, 0])[:, :, 0, 0]
    torch.testing.assert_close(innovation.where(seen[..., 0], 0), posterior.innovation)


@pytest.mark.parametrize("length", [1, 2, 8, 9, 29, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_the_definition(length: int, masked: bool) -> None:
    """Means, forecasts, information, and the gradients of all of them to everything."""
    arguments = [m.requires_grad_() for m in drawn(length=length)]
    masks = Masks()
    if masked:
        starts = torch.zeros(3, length, dtype=torch.bool)
        starts[0, length // 3] = starts[1, 0] = starts[2, -1] = True
        masks = build_masks(arguments[0], torch.tensor([length, length // 2, length - 1]), starts)
    found, expected = isotropic_filter(*arguments, masks), isotropic_reference(*arguments, masks)
    real = torch.ones(3, length, dtype=torch.bool) if masks.valid is None else masks.valid
    found, expected = (Textbook(m.mean, m.forecast[real], m.information) for m in (found, expected))
    close(found, expected)
    weights = [torch.randn_like(m) for m in expected]
    slopes = [
        torch.autograd.grad(sum((m * w).real.sum() for m, w in zip(parts, weights)), arguments)
        for parts in (found, expected)
    ]
    for ours, theirs in zip(*slopes):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def test_gains_that_all_rows_share() -> None:
    y, precision, log_decay, frequency, mean, information = drawn()
    shared = precision[1:2], log_decay, frequency, mean, information[1:2]
    close(isotropic_filter(y, *shared), isotropic_reference(y, *shared))
    assert isotropic_filter(y, *shared).information.shape[0] == 1


def test_nothing_passes_a_start_that_is_not_a_number() -> None:
    y, precision, log_decay, frequency, mean, information = drawn()
    starts = torch.zeros(3, 29, dtype=torch.bool)
    starts[:, 0] = True
    broken = torch.full_like(mean, torch.nan), torch.full_like(information, torch.nan)
    masks = build_masks(y, None, starts)
    rest = torch.zeros_like(mean), torch.zeros_like(information)
    close(
        isotropic_filter(y, precision, log_decay, frequency, *broken, masks),
        isotropic_filter(y, precision, log_decay, frequency, *rest),
    )


@pytest.mark.parametrize("precision", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("log_decay", [-1e-7, -1e-3, -1.0, -80.0])
def test_float32_keeps_its_digits(precision: float, log_decay: float) -> None:
    """10,000 steps, from hardly any decay to hardly any memory: 1/P - 1 to a relative error of 3e-4, never below 0."""
    observed = torch.rand(1, 10_000, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) > 0.3
    p = precision * observed
    keep, noise = (float(torch.tensor(x)) for x in (math.exp(2 * log_decay), -math.expm1(2 * log_decay)))
    i, expected = torch.zeros((), dtype=torch.float64), []
    for p_t in p.flatten():
        i = keep * i / (1 + noise * i) + p_t
        expected.append(i)
    tensors = (torch.full((1, 10_000, 1, 1), x) for x in (keep, noise))
    found = information_scan(*tensors, p.float(), torch.zeros(1, 1, 1))
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.double().flatten(), torch.stack(expected), rtol=3e-4, atol=1e-30)


def test_a_constant_is_averaged_and_a_walk_is_not() -> None:
    """Without decay the gain of the t-th observation is precision / (1 + t precision); with it, it settles."""
    y = torch.ones(1, 50, 1, 1, dtype=torch.complex128)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    rest = torch.zeros(1, 1, 1, 1, dtype=torch.complex128), torch.zeros(1, 1, 1, dtype=torch.float64)
    for log_decay, final in ((-1e-12, 50.0), (-0.05, None)):
        found = isotropic_filter(y, one, torch.full((1, 1), log_decay).double(), torch.zeros(1, 1).double(), *rest)
        if final is not None:
            assert found.information[0, -1].item() == pytest.approx(final)
            assert found.mean[0, -1].real.item() == pytest.approx(50 / 51)
        else:
            last = found.information.flatten()[-2:]
            assert last[1] - last[0] < 1e-6


def test_second_derivatives() -> None:
    """Of the information, whose values are found without a graph: finite differences of its gradients."""
    generator = torch.Generator().manual_seed(3)
    precision = torch.rand(1, 7, 1, 2, dtype=torch.float64, generator=generator).requires_grad_()
    keep = torch.rand(1, 7, 1, 2, dtype=torch.float64, generator=generator).requires_grad_()
    begin = torch.rand(1, 1, 2, dtype=torch.float64, generator=generator).requires_grad_()

    def information(keep: Tensor, precision: Tensor, begin: Tensor) -> Tensor:
        return information_scan(keep, 1 - keep, precision, begin)

    assert torch.autograd.gradcheck(information, (keep, precision, begin))
    assert torch.autograd.gradgradcheck(information, (keep, precision, begin))
