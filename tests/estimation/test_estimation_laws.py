"""Linear-Gaussian models under the laws for state: cuts, rows, masks, lags, paths."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from estimation_models import (
    FAST,
    MASKS,
    D,
    close,
    numbers,
    observations,
    random_model,
    random_state,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from torch import Tensor

from statewise.estimation import GaussianState, LinearGaussian
from statewise.operators import plan


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 12), max_size=4),
    form=st.sampled_from(("recurrent", "square_root", "parallel", "steady")),
    varies=st.booleans(),
    missing=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_cut_anywhere(cuts: list[int], form: str, varies: bool, missing: bool, seed: int) -> None:
    steady = form == "steady"
    model = random_model(length=12 if varies and not steady else None, batch=2, seed=seed)
    y, u = observations(2, 12, missing=missing and not steady, seed=seed)
    assert u is not None
    want, final = model.filter(y, model.initial_state(2), u=u, form=form)
    state, pieces = model.initial_state(2), []
    for a, b in pairwise([0, *sorted(cuts), 12]):
        posterior, state = model[a:b].filter(y[:, a:b], state, u=u[:, a:b], form=form)  # type: ignore[assignment]
        pieces.append(numbers(posterior))
    close([torch.cat(part, 1) for part in zip(*pieces)], numbers(want))
    close(state, final)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_lengths_starts_and_single_rows(form: str) -> None:
    """Padded and packed rows are what their documents are by themselves; no NaN, and no state, passes."""
    model = random_model()
    y, u = observations(2, 10)
    assert u is not None
    lengths = torch.tensor([10, 6])
    dirty, dirty_u = y.clone(), u.clone()
    dirty[1, 6:], dirty_u[1, 6:] = torch.inf, torch.nan
    padded, state = model.filter(dirty, model.initial_state(2), u=dirty_u, lengths=lengths, form=form)
    alone, final = model.filter(y[1:, :6], model.initial_state(1), u=u[1:, :6], form=form)
    close([m[1:, :6] for m in numbers(padded)], numbers(alone))
    assert state is not None
    assert final is not None
    close([m[1:] for m in state], final)
    assert not padded.mean[1, 6:].any()
    assert not padded.factor[1, 6:].any()
    if form == "steady":
        return
    starts = torch.zeros(2, 10, dtype=torch.bool)
    starts[0, 0] = starts[0, 4] = starts[1, 7] = True
    broken = GaussianState(torch.full((2, 3), torch.nan, dtype=D), torch.full((2, 3, 3), torch.nan, dtype=D))
    begin = GaussianState(*[torch.cat([bad[:1], good[1:]]) for bad, good in zip(broken, random_state(model, 2))])
    packed, _ = model.filter(y, begin, u=u, starts=starts, form=form)
    for row, a, b in ((0, 0, 4), (0, 4, 10), (1, 7, 10)):
        document, _ = model.filter(y[row : row + 1, a:b], u=u[row : row + 1, a:b], form=form)
        close([m[row : row + 1, a:b] for m in numbers(packed)], numbers(document))


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_a_batch_is_its_rows(form: str) -> None:
    model = random_model()
    y, u = observations(4, 8)
    assert u is not None
    together = model.filter(y, u=u, form=form)[0]
    single = [numbers(model.filter(y[i : i + 1], u=u[i : i + 1], form=form)[0]) for i in range(4)]
    close(numbers(together), [torch.cat(part) for part in zip(*single)])


@pytest.mark.parametrize("form", FAST)
def test_vmap(form: str) -> None:
    model = random_model(m=0)
    y, _ = observations(3, 6, 2, 0)

    def run(y: Tensor) -> tuple[Tensor, Tensor]:
        posterior, _ = model.filter(y[None], form=form)
        return posterior.mean[0], posterior.log_likelihood[0]

    together = model.filter(y, form=form)[0]
    close(torch.func.vmap(run)(y), (together.mean, together.log_likelihood))
    slope = torch.func.vmap(torch.func.grad(lambda y: run(y)[1]))(y)
    y.requires_grad_()
    (want,) = torch.autograd.grad(model.filter(y, form=form)[0].log_likelihood.sum(), y)
    close([slope], [want])


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_nothing_is_written_into(form: str) -> None:
    model, (y, u) = random_model(), observations(2, 5)
    state = random_state(model, 2)
    before = [m.clone() for m in (y, u, *state, model.A, model.Q)]  # type: ignore[union-attr]
    model.filter(y, state, u=u, form=form)
    assert all(torch.equal(a, b) for a, b in zip(before, (y, u, *state, model.A, model.Q)))


def test_a_mask_is_nan_and_all_may_be_missing() -> None:
    model, (y, u) = random_model(), observations(2, 6)
    observed = torch.rand(2, 6, 2) < 0.6
    for form in ("recurrent", *FAST):
        by_mask = model.filter(y, u=u, observed=observed, form=form)[0]
        by_nan = model.filter(y.masked_fill(~observed, torch.nan), u=u, form=form)[0]
        close(numbers(by_mask), numbers(by_nan), 0)
        nothing = model.filter(torch.full_like(y, torch.nan), u=u, form=form)[0]
        assert not nothing.log_likelihood.any()
        forecast = model.forecast(model.initial_state(2), 6, u=u)
        close([nothing.mean, nothing.factor], [forecast.states.mean, forecast.states.factor])


def test_forecast_is_the_joint_distribution() -> None:
    model, (y, u) = random_model(), observations(1, 8)
    assert u is not None
    _, state = model.filter(y[:, :5], model.initial_state(1), u=u[:, :5])
    assert state is not None
    forecast = model.forecast(state, 3, u=u[:, 5:])
    rest, _ = model.filter(y[:, 5:6], state, u=u[:, 5:6])
    close([y[:, 5] - forecast.observations.mean[:, 0]], [rest.innovation[:, 0]])
    close([forecast.observations.factor[:, 0]], [rest.innovation_factor[:, 0]])
    close([forecast.states.mean], [model.filter(torch.full_like(y[:, 5:], torch.nan), state, u=u[:, 5:])[0].mean])
    low, high = forecast.observations.interval(0.9)
    half = 1.6448536269514722 * forecast.observations.variance.sqrt()
    close([low, high], [forecast.observations.mean - half, forecast.observations.mean + half])


@pytest.mark.parametrize("masks", MASKS)
def test_fixed_lag(masks: str) -> None:
    """Each estimate is the last but ``lag`` of a smoother over the steps so far, in one piece and in many."""
    model, (y, u) = random_model(), observations(3, 9, missing=True)
    assert u is not None
    lag, given_masks = 3, MASKS[masks]
    whole, none = model.smooth_lagged(y, u=u, lag=lag, **given_masks)
    assert none is None
    lengths = given_masks.get("lengths", torch.tensor([9, 9, 9]))
    for row in range(3):
        for t in range(9):
            real = lag <= t < int(lengths[row])
            assert bool(whole.valid[row, t]) == real
            if not real:
                assert not whole.mean[row, t].any()
                continue
            part = {k: v[row : row + 1, : t + 1] for k, v in given_masks.items() if k == "starts"}
            smoothed = model.smooth(y[row : row + 1, : t + 1], u=u[row : row + 1, : t + 1], **part)
            close(
                [whole.mean[row, t], whole.factor[row, t]],
                [smoothed.mean[0, -1 - lag], smoothed.factor[0, -1 - lag]],
                1e-9,
            )
    if "lengths" in given_masks:
        return
    state, pieces = model.initial_lag_state(3, lag), []
    for a, b in pairwise([0, 1, 1, 6, 9]):
        part = {k: v[:, a:b] for k, v in given_masks.items()}
        lagged, state = model.smooth_lagged(y[:, a:b], state, u=u[:, a:b], lag=lag, **part)  # type: ignore[assignment]
        pieces.append((lagged.mean, lagged.factor, lagged.valid))
    close([torch.cat(p, 1) for p in zip(*pieces)], (whole.mean, whole.factor, whole.valid))


def test_fixed_lag_pads_and_goes_on() -> None:
    model, (y, u) = random_model(), observations(2, 9)
    assert u is not None
    _, state = model.smooth_lagged(y, model.initial_lag_state(2, 2), u=u, lag=2, lengths=torch.tensor([5, 1]))
    _, alone = model.smooth_lagged(y[1:, :1], model.initial_lag_state(1, 2), u=u[1:, :1], lag=2)
    assert state is not None
    assert alone is not None
    again, _ = model.smooth_lagged(
        y[1:, 1:],
        type(alone)(GaussianState(*[m[1:] for m in state.filtered]), *[m[1:] for m in state[1:]]),
        u=u[1:, 1:],
        lag=2,
    )
    want, _ = model.smooth_lagged(y[1:, 1:], alone, u=u[1:, 1:], lag=2)
    close([again.mean, again.factor], [want.mean, want.factor])
    assert torch.equal(again.valid, want.valid)


@pytest.mark.parametrize("masks", ["whole", "starts", "lengths"])
def test_paths_have_the_smoothers_moments(masks: str) -> None:
    model, (y, u) = random_model(), observations(3, 9)
    g = torch.Generator().manual_seed(0)
    paths = model.sample(y, 20_000, u=u, generator=g, **MASKS[masks])
    smoothed = model.smooth(y, u=u, **MASKS[masks])
    assert paths.shape == (20_000, 3, 9, 3)
    centred = paths - smoothed.mean
    assert float(centred.mean(0).abs().max()) < 0.05
    pairs = torch.einsum("sbti,sbtj->btij", centred[:, :, 1:], centred[:, :, :-1]) / 20_000
    assert float((pairs - smoothed.lag_one[:, 1:]).abs().max()) < 0.06
    own = torch.einsum("sbti,sbtj->btij", centred, centred) / 20_000
    assert float((own - smoothed.covariance).abs().max()) < 0.06


def test_simulated_series_have_the_models_moments() -> None:
    model = random_model(m=0)
    x, y = model.simulate(20_000, 3, generator=torch.Generator().manual_seed(0))
    forecast = model.forecast(model.initial_state(1), 3)
    for drawn, told in ((x, forecast.states), (y, forecast.observations)):
        centred = drawn - told.mean
        assert float((centred.mean(0) / told.variance[0].sqrt()).abs().max()) < 0.03
        for t in range(3):
            torch.testing.assert_close(centred[:, t].T.cov(), told.covariance[0, t], atol=0.1, rtol=0.1)


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_no_rows_and_no_steps(form: str) -> None:
    model = random_model()
    for batch, length in ((0, 4), (2, 0), (0, 0)):
        y, u = observations(batch, length)
        posterior, state = model.filter(y, model.initial_state(batch), u=u, form=form)
        assert posterior.mean.shape == (batch, length, 3)
        assert posterior.innovation_factor.shape == (batch, length, 2, 2)
        assert state is not None
        close(state, model.initial_state(batch))
        smoothed = model.smooth(y, u=u, form=form)
        assert smoothed.lag_one.shape == (batch, length, 3, 3)
        assert smoothed.initial_factor.shape == (batch, 3, 3)
    assert model.forecast(model.initial_state(2), 0, u=torch.zeros(2, 0, 2, dtype=D)).observations.mean.shape == (
        2,
        0,
        2,
    )


def test_the_page_names_every_form() -> None:
    page = (ROOT / "docs" / "estimation.md").read_text("utf-8")
    assert all(f"| `{form}` |" in page for form in LinearGaussian.forms)
    assert "at most 8 rows of at least 64 steps" in page
    in_c, *rules = LinearGaussian.rules
    assert (in_c.form, in_c.condition) == ("square_root", "the C kernel runs")
    assert plan(rules, length=64, n_taps=8).form == "parallel"
    for length, rows in ((63, 8), (64, 9), (10_000, 100)):
        assert plan(rules, length=length, n_taps=rows).form == "square_root"
