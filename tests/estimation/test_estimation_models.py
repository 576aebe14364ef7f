"""Models from continuous systems, what others compute for the same, and wrong input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from estimation_models import D, covariance, observations, random_model
from laws import wrong_lengths, wrong_starts, wrong_states
from test_estimation import close, refused
from torch import Tensor

import statewise as sw
from statewise.estimation import GaussianState, LinearGaussian
from statewise.estimation.continuous import van_loan
from statewise.precision import products_at
from statewise.systems import ContinuousSystem

# -- continuous systems ------------------------------------------------------------------------------------------------


def test_constant_velocity_in_closed_form() -> None:
    system = ContinuousSystem(
        torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=D),
        torch.tensor([0.0, 1.0], dtype=D),
        torch.tensor([1.0, 0.0], dtype=D),
    )
    one = torch.ones(1, 1, dtype=D)
    for dt in (0.3, 2.0, 700.0):
        A, B, _, _, Q = van_loan(system, dt, 0.5 * one, "inputs")
        assert B is None
        close([A], [torch.tensor([[1, dt], [0, 1]], dtype=D)], 1e-12)
        close([Q], [0.5 * torch.tensor([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]], dtype=D)], 1e-12)


def test_van_loan_is_the_integral_and_does_not_cancel() -> None:
    F = torch.tensor([[-1.0, 2.0], [0.5, -3.0]], dtype=D)
    Q = covariance(2, 2, generator=torch.Generator().manual_seed(0))
    system = ContinuousSystem(F, torch.eye(2, dtype=D), torch.eye(2, dtype=D))
    A, B, _, D_, Q_step = van_loan(system, 1.7, Q)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    total = torch.zeros(2, 2, dtype=D)
    for s, w in zip(1.7 * (nodes + 1) / 2, 1.7 * weights / 2):
        E = torch.linalg.matrix_exp(F * s)
        total += w * E @ Q @ E.T
    close([A, Q_step], [torch.linalg.matrix_exp(1.7 * F), total], 1e-12)
    assert D_ is None
    assert B is not None
    close([B], [torch.linalg.solve(F, A - torch.eye(2, dtype=D))], 1e-12)
    stiff = ContinuousSystem(
        torch.diag(torch.tensor([-1e6, -1e-3], dtype=D)), torch.eye(2, dtype=D), torch.eye(2, dtype=D)
    )
    _, _, _, _, Q_stiff = van_loan(stiff, 10.0, torch.eye(2, dtype=D))
    want = torch.tensor([5e-7, (1 - math.exp(-0.02)) / 2e-3], dtype=D)
    close([Q_stiff.diagonal() / want], [torch.ones(2, dtype=D)], 1e-9)


def test_irregular_times() -> None:
    """A step in two halves is the step; two observations at one time are two updates."""
    system = sw.mass_spring_damper(1.0, 4.0, 0.3)
    one = torch.ones(1, 1, dtype=D)
    y = torch.randn(1, 4, 1, dtype=D, generator=torch.Generator().manual_seed(0))
    times = torch.tensor([0.5, 1.5, 1.5, 2.7], dtype=D)
    dt = torch.diff(times, prepend=times[:1])
    model = LinearGaussian.from_continuous(system, dt, Q=0.2 * one, R=one, noise_of="inputs")
    posterior, _ = model.filter(y)
    finer = torch.tensor([[0.0, 0.4, 0.6, 0.0, 0.7, 0.5]], dtype=D)
    gaps = torch.full((1, 6, 1), torch.nan, dtype=D)
    gaps[0, [0, 2, 3, 5]] = y[0]
    same, _ = LinearGaussian.from_continuous(system, finer, Q=0.2 * one, R=one, noise_of="inputs").filter(gaps)
    close([same.mean[:, [0, 2, 3, 5]], same.log_likelihood], [posterior.mean, posterior.log_likelihood])
    close([model.A[0, 0], model.Q[0, 0]], [torch.eye(2, dtype=D), torch.zeros(2, 2, dtype=D)])
    regular = LinearGaussian.from_continuous(system, 0.1, Q=torch.eye(2, dtype=D), R=one)
    assert regular.A.shape == (2, 2)
    assert regular.n_inputs == 1


def test_gradients_of_a_time_step() -> None:
    system = sw.mass_spring_damper(1.0, 4.0, 0.3)
    one = torch.ones(1, 1, dtype=D)
    y = torch.randn(1, 4, 1, dtype=D, generator=torch.Generator().manual_seed(0))

    def likelihood(dt: Tensor, q: Tensor) -> Tensor:
        model = LinearGaussian.from_continuous(system, dt, Q=q * one, R=one, noise_of="inputs")
        return model.filter(y)[0].log_likelihood.sum()

    leaves = [torch.tensor(z, dtype=D, requires_grad=True) for z in (0.4, 0.3)]
    assert torch.autograd.gradcheck(likelihood, leaves)
    zero = torch.zeros(1, dtype=D)  # two observations at one time: no noise between them
    irregular = torch.tensor([0.4, 1.0, 0.2], dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(lambda dt, q: likelihood(torch.cat([zero, dt]), q), [irregular, leaves[1]])


def test_wrong_continuous_systems() -> None:
    system = sw.mass_spring_damper(1.0, 4.0, 0.3)
    Q, R = torch.eye(2, dtype=D), torch.ones(1, 1, dtype=D)
    make = LinearGaussian.from_continuous
    refused(lambda: make(system, -0.1, Q=Q, R=R), "none below 0")
    refused(lambda: make(system, torch.tensor([0.1, torch.nan], dtype=D), Q=Q, R=R), "needs dt")
    refused(lambda: make(system, torch.ones(3), Q=Q, R=R), "needs dt")
    refused(lambda: make(system, 0.1, Q=R, R=R), r"needs Q \(2, 2\)")
    refused(lambda: make(system, 0.1, Q=Q, R=R, noise_of="inputs"), r"needs Q \(1, 1\)")
    refused(lambda: make(system, 0.1, Q=Q, R=R, noise_of="sensors"), "is unknown")
    refused(lambda: make(None, 0.1, Q=Q, R=R), "real ContinuousSystem")  # type: ignore[arg-type]
    refused(lambda: make(sw.mass_spring_damper(1.0, torch.ones(2), 0.3), 0.1, Q=Q, R=R), "without leading axes")


# -- statsmodels -------------------------------------------------------------------------------------------------------


def test_statsmodels_has_the_same_numbers() -> None:
    """A local level with a season of 4, with missing values, for one set of variances."""
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural", reason="statsmodels is not installed")
    rng = np.random.default_rng(0)
    series = rng.normal(size=120).cumsum() + np.tile([1.0, -2.0, 0.5, 0.5], 30) + rng.normal(size=120)
    series[[7, 50, 51, 52]] = np.nan
    theirs = structural.UnobservedComponents(series, "local level", seasonal=4)
    theirs.initialize_known(np.zeros(4), 100.0 * np.eye(4))
    theirs.loglikelihood_burn = 0
    result = theirs.smooth([0.7, 0.3, 0.1])
    T, C = (torch.tensor(theirs[name]) for name in ("transition", "design"))
    selection = torch.tensor(theirs["selection"])
    Q, R = selection @ torch.tensor(theirs["state_cov"]) @ selection.T, torch.tensor(theirs["obs_cov"])
    # theirs begins with the distribution of the first state, ours with the one before it
    inverse = torch.linalg.inv(T)
    before = inverse @ (100.0 * torch.eye(4, dtype=D) - Q) @ inverse.T
    model = LinearGaussian(T, Q, C, R, covariance=(before + before.T) / 2)
    y = torch.tensor(series)[None, :, None]
    for form in ("square_root", "parallel"):
        posterior, state = model.filter(y, model.initial_state(1), form=form)
        assert float(posterior.log_likelihood) == pytest.approx(result.llf, abs=1e-8)
        close([posterior.mean[0]], [torch.tensor(result.filtered_state.T)], 1e-8)
        smoothed = model.smooth(y, form=form)
        close([smoothed.mean[0]], [torch.tensor(result.smoothed_state.T)], 1e-7)
        close([smoothed.covariance[0]], [torch.tensor(result.smoothed_state_cov.transpose(2, 0, 1).copy())], 1e-7)
        assert state is not None
        forecast = model.forecast(state, 12).observations
        told = result.get_forecast(12)
        close([forecast.mean[0, :, 0]], [torch.tensor(told.predicted_mean)], 1e-8)
        low, high = forecast.interval(0.95)
        close([torch.stack([low[0, :, 0], high[0, :, 0]], 1)], [torch.tensor(told.conf_int(alpha=0.05))], 1e-7)


# -- wrong input -------------------------------------------------------------------------------------------------------


def test_wrong_coefficients() -> None:
    model = random_model(m=0, correlated=False)
    A, Q, C, R = model.A, model.Q, model.C, model.R
    upset, negative = Q.clone(), torch.eye(3, dtype=D)
    upset[0, 1] += 0.5
    negative[0, 1] = negative[1, 0] = 2.0
    refused(lambda: LinearGaussian(A, upset, C, R), r"Q symmetric; Q\[0, 1\]")
    refused(lambda: LinearGaussian(A, negative, C, R), "Q positive semi-definite")
    refused(lambda: LinearGaussian(A, -Q, C, R), "Q positive semi-definite; it has a variance of")
    refused(lambda: replace(model, covariance=negative), "covariance positive semi-definite")
    refused(
        lambda: replace(model, S=10 * torch.ones(3, 2, dtype=D)), r"\[\[Q, S\], \[S\^T, R\]\] positive semi-definite"
    )
    refused(lambda: LinearGaussian(A, Q, C, -R), "R positive semi-definite")
    refused(lambda: LinearGaussian(A, R, C, R), r"Q of shape \(3, 3\)")
    refused(lambda: LinearGaussian(A, Q, C, Q), r"R of shape \(2, 2\)")
    refused(lambda: LinearGaussian(A, Q, C[:, :2], R), r"C of shape \(2, 3\)")
    refused(lambda: LinearGaussian(A[:2], Q, C, R), r"A of shape \(3, 3\)")
    refused(lambda: LinearGaussian(A[0], Q, C, R), r"needs A \(n, n\)")
    refused(lambda: LinearGaussian(A, Q[None], C, R), r"or \(batch, length, 3, 3\)")
    refused(lambda: replace(model, b=torch.zeros(2, dtype=D)), r"b of shape \(3,\)")
    refused(lambda: replace(model, B=torch.zeros(3, 2, dtype=D), D=torch.zeros(2, 1, dtype=D)), r"D of shape \(2, 2\)")
    refused(lambda: replace(model, mean=torch.zeros(2, dtype=D)), r"mean of shape \(3,\)")
    refused(lambda: LinearGaussian(A.float(), Q, C, R), "one dtype")
    refused(lambda: LinearGaussian(A.long(), Q, C, R), "A in float32 or float64")
    refused(lambda: LinearGaussian(A + 0j, Q, C, R), "A in float32 or float64")
    refused(lambda: LinearGaussian(A.tolist(), Q, C, R), "A as a tensor")  # type: ignore[arg-type]
    refused(lambda: LinearGaussian(A * torch.nan, Q, C, R), "A holds NaN")
    varying = Q.expand(1, 4, 3, 3).clone()
    varying[0, 2, 0, 1] += 1.0
    refused(lambda: LinearGaussian(A, varying, C, R), "Q symmetric")


def test_small_units_are_no_error() -> None:
    """Symmetry and sign are judged beside the variances."""
    root = torch.diag(torch.tensor([1e-12, 1.0, 1e9], dtype=D))
    P = root @ covariance(3, 3, generator=torch.Generator().manual_seed(0)) @ root
    assert LinearGaussian(torch.eye(3, dtype=D), (P + P.T) / 2, torch.eye(3, dtype=D), P).n_states == 3
    bad = P.clone()
    bad[0, 1] = 2 * bad[0, 1]
    refused(lambda: LinearGaussian(torch.eye(3, dtype=D), bad, torch.eye(3, dtype=D), P), "symmetric")


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_wrong_calls(form: str) -> None:
    model = random_model()
    y, u = observations(2, 4)
    assert u is not None

    def call(y: object = y, state: object = None, **more: object) -> object:
        return model.filter(y, state, **({"u": u, "form": form} | more))  # type: ignore[arg-type]

    for wrong in (
        None,
        y.numpy(),
        y.tolist(),
        y[0],
        y[..., :1],
        y[..., 0],
        y.long(),
        y > 0,
        y + 0j,
        y.half(),
        y.to("meta"),
        y.to_sparse(),
    ):
        refused(lambda wrong=wrong: call(wrong), "needs y")
    refused(lambda: call(y * torch.inf), "infinity")
    for state in wrong_states(model.initial_state(2)):
        refused(lambda state=state: call(state=state), "state")
    for lengths in wrong_lengths(2, 4):
        refused(lambda lengths=lengths: call(lengths=lengths), "lengths")
    for starts in wrong_starts(2, 4):
        refused(lambda starts=starts: call(starts=starts), "starts")
    for wrong in (u[:1], u[..., :1], u.tolist(), None, u.long()):
        refused(lambda wrong=wrong: call(u=wrong), "needs u")
    for wrong in (y[:1] > 0, y, True):
        refused(lambda wrong=wrong: call(observed=wrong), "observed")
    refused(lambda: call(form="fastest"), "has no form")
    refused(lambda: random_model(m=0).filter(y, u=u), "takes no u")
    refused(lambda: random_model(length=5).filter(y, u=u), "y has 2 and 4")
    refused(lambda: replace(model, mean=torch.zeros(3, 3, dtype=D)).filter(y, u=u), "for 3 rows; y has 2")


def test_wrong_other_calls() -> None:
    model = random_model()
    y, u = observations(2, 4)
    assert u is not None
    refused(lambda: model.forecast(None, 3, u=u), "the state that filter returned")  # type: ignore[arg-type]
    refused(lambda: model.forecast(model.initial_state(2), -1, u=u), "forecast needs length as a number of steps")
    refused(lambda: model.forecast(model.initial_state(2), 3), "needs u")
    refused(lambda: model.sample(y, 0, u=u), "n_samples")
    refused(lambda: model.smooth_lagged(y, u=u, lag=0), "lag must be")
    refused(lambda: model.smooth_lagged(y, model.initial_lag_state(2, 3), u=u, lag=2), "state")
    refused(lambda: model.smooth_lagged(y, model.initial_state(2), u=u, lag=2), "state")  # type: ignore[arg-type]
    refused(lambda: model.initial_state(-1), "batch")
    refused(lambda: model[3], "sliced in time")  # type: ignore[index]
    refused(lambda: model.filter(y, u=u)[0].interval(95), "between 0 and 1")


def test_dtypes() -> None:
    narrow = LinearGaussian(*[m.float() for m in (torch.eye(1), torch.eye(1), torch.eye(1), torch.eye(1))])
    y = torch.randn(1, 5, 1)
    for form in LinearGaussian.forms:
        posterior, state = narrow.filter(y, narrow.initial_state(1), form=form)
        assert posterior.mean.dtype == posterior.log_likelihood.dtype == torch.float32
        assert state is not None
        assert state.factor.dtype == torch.float32
        assert narrow.filter(y.double(), form=form)[0].mean.dtype == D
        assert narrow.smooth(y, form=form).mean.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            close([narrow.filter(y, form=form)[0].mean], [posterior.mean], 1e-6)
    assert isinstance(narrow.initial_state(2, dtype=torch.bfloat16), GaussianState)
    assert narrow.initial_state(2, dtype=torch.bfloat16).mean.dtype == torch.float32


def test_where_products_may_be_rounded() -> None:
    """TF32, or bfloat16 on a CPU that has it: a filter computes in float64 then, and gives float32 back."""
    model = LinearGaussian(*[m.float() for m in (0.9 * torch.eye(2), torch.eye(2), torch.eye(2), torch.eye(2))])
    C = torch.eye(2)
    other = sw.NonlinearGaussian(lambda x: 0.9 * (C @ x), model.Q, lambda x: C @ x, model.R)
    y = torch.randn(2, 70, 2)
    want, smoothed = model.filter(y)[0], model.smooth(y)
    with products_at("high"):
        lagged, _ = model.smooth_lagged(y, model.initial_lag_state(2, 2), lag=2)
        assert lagged.mean.dtype == torch.float32
        for form in LinearGaussian.forms:
            got, state = model.filter(y, model.initial_state(2), form=form)
            assert state is not None
            assert got.factor.dtype == state.factor.dtype == torch.float32
            close([got.mean, model.smooth(y, form=form).mean], [want.mean, smoothed.mean], 1e-4)
        close([other.filter(y)[0].mean, other.smooth(y).mean], [want.mean, smoothed.mean], 1e-2)
