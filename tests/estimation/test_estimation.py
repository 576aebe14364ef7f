"""Linear-Gaussian models: the definition by conditioning, and every form against the definition."""

from __future__ import annotations

import pytest
import torch
from estimation_models import (
    FAST,
    MASKS,
    VARIES,
    D,
    by_conditioning,
    close,
    numbers,
    observations,
    random_model,
    random_state,
    refused,
)

import statewise as sw
from statewise import kernels, native
from statewise.estimation import LinearGaussian

# -- the definition ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("varies", [{}, {"length": 6, "batch": 2}])
def test_the_definition_is_conditioning(correlated: bool, missing: bool, varies: dict[str, int]) -> None:
    model = random_model(correlated=correlated, **varies)
    y, u = observations(2, 6, missing=missing)
    posterior, _ = model.filter(y, u=u, form="recurrent")
    smoothed = model.smooth(y, u=u, form="recurrent")
    for row in range(2):
        answer = by_conditioning(model, y, u, row)
        close([posterior.log_likelihood[row]], [answer.log_likelihood])
        close([smoothed.initial_mean[row], smoothed.mean[row]], [answer.mean[0], answer.mean[1:]])
        for t in range(6):
            close([smoothed.covariance[row, t]], [answer.covariance[t + 1, :, t + 1]])
            close([smoothed.lag_one[row, t]], [answer.covariance[t + 1, :, t]])
            past = y[:, : t + 1]
            now = by_conditioning(model[: t + 1], past, None if u is None else u[:, : t + 1], row)
            close([posterior.mean[row, t]], [now.mean[-1]])
            close([posterior.covariance[row, t]], [now.covariance[-1, :, -1]])


def test_the_scalar_model_by_hand() -> None:
    """P = 1 + 1 = 2, K = 2/3; then P = 2/3 + 1 = 5/3, K = 5/8."""
    one = torch.ones(1, 1, dtype=D)
    for form in LinearGaussian.forms:
        posterior, state = LinearGaussian(one, one, one, one).filter(torch.ones(1, 2, 1, dtype=D), form=form)
        assert state is None
        want = torch.tensor([[2 / 3, 7 / 8], [2 / 3, 5 / 8]], dtype=D)
        close([posterior.mean[0, :, 0], posterior.variance[0, :, 0]], want)


# -- forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("varies", VARIES)
def test_every_form_is_the_definition(form: str, masks: str, missing: bool, varies: str) -> None:
    model = random_model(**VARIES[varies])  # type: ignore[arg-type]
    y, u = observations(3, 9, missing=missing)
    state = random_state(model, 3)
    for begin in (None, state):
        want, final = model.filter(y, begin, u=u, form="recurrent", **MASKS[masks])
        got, after = model.filter(y, begin, u=u, form=form, **MASKS[masks])
        close(numbers(got), numbers(want))
        assert torch.equal(got.n_observed, want.n_observed)
        assert (begin is None) == (after is None) == (final is None)
        if after is not None:
            close(after, final)
        smoothed, defined = (model.smooth(y, begin, u=u, form=f, **MASKS[masks]) for f in (form, "recurrent"))
        close(vars(smoothed).values(), vars(defined).values(), 1e-9)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (4, 1), (2, 2)])
@pytest.mark.parametrize("form", FAST)
def test_sizes(form: str, sizes: tuple[int, int]) -> None:
    n, p = sizes
    model = random_model(n=n, p=p, m=0)
    for length in (0, 1, 2, 3, 8, 17):
        y, _ = observations(2, length, p, 0)
        want, got = model.filter(y, form="recurrent")[0], model.filter(y, form=form)[0]
        close(numbers(got), numbers(want))
        close([model.smooth(y, form=form).factor], [model.smooth(y, form="recurrent").factor])


def test_steady() -> None:
    model = random_model(n=4, correlated=True)
    y, u = observations(3, 400)
    for lengths in (None, torch.tensor([400, 3, 250])):
        want, final = model.filter(y, random_state(model, 3), u=u, lengths=lengths, form="square_root")
        got, after = model.filter(y, random_state(model, 3), u=u, lengths=lengths, form="steady")
        assert got.steady is not None
        assert got.steady.step < 100
        assert got.steady.error < 1e-12
        close(numbers(got), numbers(want))
        close(after, final)  # type: ignore[arg-type]


def test_steady_says_what_it_costs() -> None:
    """Half of float32's digits are left where the switch comes early; before it nothing changes."""
    model = random_model(n=2, m=0)
    y, _ = observations(1, 60, 2, 0)
    posterior = model.filter(y, form="steady")[0]
    assert posterior.steady is not None
    short = model.filter(y[:, : posterior.steady.step], form="steady")[0]
    assert short.steady is not None
    assert short.steady.step == posterior.steady.step
    assert torch.equal(short.mean, posterior.mean[:, : posterior.steady.step])


def test_steady_refuses() -> None:
    model = random_model(m=0)
    y, _ = observations(2, 5, 2, 0)
    hole = y.clone()
    hole[0, 0, 0] = torch.nan
    starts = torch.zeros(2, 5, dtype=torch.bool)
    starts[0, 2] = True
    eye = torch.eye(1, dtype=D)
    refused(lambda: model.filter(hole, form="steady"), "some are missing")
    refused(lambda: model.filter(y, starts=starts, form="steady"), "one document a row")
    refused(lambda: random_model(m=0, length=5).filter(y, form="steady"), "time-invariant")
    still = LinearGaussian(eye, 0 * eye, eye, eye)
    refused(lambda: still.filter(y[..., :1], form="steady"), "needs a covariance that settles")
    unseen = LinearGaussian(1.1 * eye, eye, 0 * eye, eye)
    refused(lambda: unseen.filter(y[..., :1], form="steady"), "needs a covariance that settles")


def test_plan_and_explain() -> None:
    model = random_model(m=0)
    y, _ = observations(2, 5, 2, 0)
    told = sw.explain(model, y)
    assert told.operator == "LinearGaussian"
    assert told.form in model.forms
    close(numbers(model.filter(y)[0]), numbers(model.filter(y, form=told.form)[0]), 0)
    long = torch.zeros(1, 64, 2, dtype=D)
    with kernels.use("torch"):
        assert sw.explain(model, long).form == "parallel"
    if native.available():
        assert sw.explain(model, long).form == "square_root"
