"""The form with a constant gain: where it may switch, and what it says that costs."""

from __future__ import annotations

import pytest
import torch
from estimation_models import D, observations, random_model
from torch import Tensor

from statewise import kernels
from statewise.estimation import LinearGaussian


def still_states(dtype: torch.dtype) -> dict[str, LinearGaussian]:
    """States that no noise moves, begun from priors much wider than what is seen of them."""

    def m(*rows: list[float]) -> Tensor:
        return torch.tensor(rows, dtype=dtype)

    wide = 1e12 if dtype == D else 1e4
    eye = torch.eye(2, dtype=dtype)
    # x_1 and x_2 move together by one large noise; their difference only decays, and a precise sensor sees it
    turned = m([0.9, 0.0], [0.0, 0.9])
    return {
        "one": LinearGaussian(m([0.9]), m([0.0]), m([1.0]), m([1.0]), covariance=m([wide])),
        "one of two": LinearGaussian(
            m([0.9, 0.1], [0.0, 0.8]), m([1.0, 0.0], [0.0, 0.0]), m([1.0, 1.0]), m([0.5]), covariance=wide * eye
        ),
        "a difference": LinearGaussian(
            turned, 1e3 * torch.ones_like(eye), m([1.0, -1.0], [0.0, 1.0]), 1e-3 * eye, covariance=wide * eye
        ),
        "one that is not seen": LinearGaussian(
            turned, m([1.0, 0.0], [0.0, 0.0]), m([1.0, 0.0]), m([1.0]), covariance=wide * eye
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", still_states(D))
def test_a_state_without_noise_settles_when_nothing_more_is_learned_of_it(name: str, dtype: torch.dtype) -> None:
    """Its limit is 0, beside which nothing is small: what counts is what observations notice of it."""
    model = still_states(dtype)[name]
    p = model.n_observations
    for y in (torch.arange(1, 401, dtype=dtype)[None, :, None].expand(1, 400, p), model.simulate(3, 400)[1]):
        for length in (30, 400):
            with kernels.use("torch"):  # the same steps before the switch
                want = model.filter(y[:, :length], form="square_root")[0]
            got = model.filter(y[:, :length], form="steady")[0]
            assert got.steady is not None
            if length == 400:
                assert got.steady.step < 400
            eps, deviation = torch.finfo(dtype).eps, want.variance.sqrt()
            unit = deviation + (deviation[:, -1:] < 1e-6)  # what has decayed is nothing beside what is seen
            rounding = 1e4 * eps + 64 * eps * float(want.mean.abs().max()) / unit
            assert bool(((got.mean - want.mean).abs() / unit <= 2 * got.steady.error + rounding).all())
            of_y = (got.innovation_factor - want.innovation_factor).abs() / want.innovation_factor.abs().amax()
            assert float(of_y.max()) <= 2 * got.steady.error + 1e4 * eps


def test_a_decay_from_a_wide_prior_is_its_regression() -> None:
    """y_t = 0.9^t x_0 + v_t has one unknown number."""
    one, y, decay = torch.ones(1, 1, dtype=D), torch.arange(1, 31, dtype=D), 0.9 ** torch.arange(1, 31, dtype=D)
    model = LinearGaussian(0.9 * one, 0 * one, one, one, covariance=1e12 * one)
    posterior = model.filter(y[None, :, None], form="steady")[0]
    want = decay[-1] * (decay @ y) / (decay @ decay + 1e-12)
    assert float(posterior.mean[0, -1, 0]) == pytest.approx(float(want), rel=1e-12)


def test_what_steady_says_is_what_it_costs() -> None:
    """In float32, where the gain stops moving long before the covariance has arrived."""
    for seed in range(4):
        wide = random_model(n=3, m=0, seed=seed)
        narrow = LinearGaussian(*[m.float() for m in (wide.A, wide.Q, wide.C, wide.R)])
        y = observations(2, 300, 2, 0)[0].float()
        want, got = narrow.filter(y, form="square_root")[0], narrow.filter(y, form="steady")[0]
        assert got.steady is not None
        off = ((got.mean - want.mean).abs() / want.variance.sqrt())[:, got.steady.step :]
        assert float(off.max()) <= 2 * got.steady.error + 1e-5
        assert got.steady.error < 1e-2
