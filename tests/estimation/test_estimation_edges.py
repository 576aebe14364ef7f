"""Values, sizes and functions that no filter can take: refused in one line, or taken for what they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from estimation_models import D, close, numbers, observations, random_model, random_state, refused
from torch import Tensor

import statewise as sw
from statewise import kernels
from statewise.estimation import GaussianState, LinearGaussian, NonlinearGaussian, angles, nees, nis
from statewise.estimation.transforms import METHODS

ONE = torch.ones(1, 1, dtype=D)
FORMS = LinearGaussian.forms


def spread(value: float, like: Tensor) -> Tensor:
    """like, with this at its third place."""
    found = like.clone(memory_format=torch.contiguous_format)
    found.view(-1)[2] = value
    return found


def nonlinear(f: Any = lambda x: 0.9 * x, h: Any = lambda x: x[:1], **more: Any) -> NonlinearGaussian:
    return NonlinearGaussian(f, torch.eye(2, dtype=D), h, ONE, **more)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_and_states_that_are_not_finite(value: float) -> None:
    model, other = random_model(), nonlinear(lambda x, u: x + u.sum(), lambda x, u: x[:1])
    y, u = observations(2, 4)
    assert u is not None
    for call in (model.filter, model.smooth, lambda y, **k: model.sample(y, 2, **k)):
        refused(
            lambda call=call: call(y, u=spread(value, u)),
            "u holds NaN or infinity; only y may have gaps: fill those of u",
        )
    refused(lambda: other.filter(y[..., :1], u=spread(value, u)), "NonlinearGaussian: u holds NaN")
    state, lagged = random_state(model, 2), model.initial_lag_state(2, 3)
    for wrong in (state._replace(mean=spread(value, state.mean)), state._replace(factor=spread(value, state.factor))):
        for form in FORMS:
            refused(lambda wrong=wrong, form=form: model.filter(y, wrong, u=u, form=form), "state holds NaN")  # type: ignore[misc]
        refused(lambda wrong=wrong: model.forecast(wrong, 4, u=u), "state holds NaN")
        refused(lambda wrong=wrong: model.smooth_lagged(y, lagged._replace(filtered=wrong), u=u, lag=3), "state holds")
    refused(lambda: model.smooth_lagged(y, lagged._replace(Z=spread(value, lagged.Z)), u=u, lag=3), "state holds NaN")


def test_what_no_call_reads_may_be_anything() -> None:
    """Padding of u, and the state of a row that begins with a document."""
    model = random_model()
    y, u = observations(2, 4)
    assert u is not None
    lengths, starts = torch.tensor([4, 2]), torch.tensor([[True, False, False, False], [False] * 4])
    wrong, state = u.clone(), random_state(model, 2)
    wrong[1, 2:] = math.nan
    close(numbers(model.filter(y, u=wrong, lengths=lengths)[0]), numbers(model.filter(y, u=u, lengths=lengths)[0]))
    dirty = GaussianState(*[m.index_fill(0, torch.tensor(0), math.nan) for m in state])
    close(
        numbers(model.filter(y, dirty, u=u, starts=starts)[0]), numbers(model.filter(y, state, u=u, starts=starts)[0])
    )


@pytest.mark.parametrize("method", METHODS)
def test_functions_that_are_not_finite(method: str) -> None:
    y = torch.randn(2, 5, 1, dtype=D)
    later = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]], dtype=D).expand(2, 5, 1)
    bad = nonlinear(lambda x, u: x / (1 - u), lambda x, u: x[:1], method=method)
    for call in (bad.filter, bad.smooth):
        refused(
            lambda call=call: call(y, u=later), "^f, or its derivative, is NaN or infinite at step 2; it must be finite"
        )
    refused(lambda: bad.simulate(2, 5, u=later), "^f, .* at step 2")
    refused(lambda: bad.forecast(bad.initial_state(2), 5, u=later), "^f, .* at step 2")
    bad = nonlinear(lambda x, u: x, lambda x, u: x[:1] / (1 - u), method=method)
    refused(lambda: bad.filter(y, u=later), "^h, or its derivative, is NaN or infinite at step 2")
    refused(lambda: bad.simulate(2, 5, u=later), "^h, .* at step 2")
    refused(lambda: bad.forecast(bad.initial_state(2), 5, u=later), "^h, .* at step 2")
    if method == "extended":  # finite, where its derivative is not
        refused(lambda: nonlinear(h=lambda x: x[:1].abs().sqrt()).filter(y), "^h, or its derivative, .* at step 0")


@pytest.mark.parametrize("method", METHODS)
def test_functions_may_be_anything_where_nothing_is_seen(method: str) -> None:
    """In padding, whose u is 0, and h where y is missing."""
    model = nonlinear(lambda x, u: x / u, lambda x, u: x[:1] / (u - 2), method=method)
    y, u = torch.randn(2, 5, 1, dtype=D), torch.ones(2, 5, 1, dtype=D)
    lengths = torch.tensor([5, 3])
    for call in (lambda y, **k: model.filter(y, **k)[0], model.smooth):
        whole = call(y, u=u, lengths=lengths)
        close(
            [whole.mean[1, :3], whole.factor[1, :3]],
            [m[0] for m in (call(y[1:, :3], u=u[1:, :3]).mean, call(y[1:, :3], u=u[1:, :3]).factor)],
        )
    u[0, 2], y[0, 2] = 2.0, math.nan
    assert bool(model.filter(y, u=u)[0].mean.isfinite().all())


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("batch", [0, 2])
def test_masks_that_leave_nothing_out(form: str, backend: str, batch: int) -> None:
    model = random_model(m=0)
    y, _ = observations(batch, 4, m=0)
    with kernels.use(backend):
        want = model.filter(y, form=form)[0]
        close(numbers(model.filter(y, lengths=torch.full((batch,), 4), form=form)[0]), numbers(want))
        if form != "steady":
            starts = torch.zeros(batch, 4, dtype=torch.bool)
            starts[:, 0] = True
            close(numbers(model.filter(y, starts=starts, form=form)[0]), numbers(want))
            starts[:, 2] = True
            assert model.filter(y, starts=starts, form=form)[0].mean.shape == (batch, 4, 3)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_no_steps(form: str) -> None:
    model = random_model(m=0)
    A, covariance = model.A.clone().requires_grad_(), model._covariance.clone().requires_grad_()
    model = replace(model, A=A, covariance=covariance)
    y, state = observations(2, 0, m=0)[0], model.initial_state(2)
    for lengths in (None, torch.tensor([0, 0])):
        posterior, after = model.filter(y, state, lengths=lengths, form=form)
        assert after is not None
        for found in (*numbers(posterior), model.smooth(y, lengths=lengths, form=form).factor):
            if found.requires_grad:
                gradients = torch.autograd.grad(found.sum(), (A, covariance), allow_unused=True, retain_graph=True)
                assert all(m is None or not m.any() for m in gradients)
        (gradient,) = torch.autograd.grad(after.factor.square().sum(), covariance, retain_graph=True)
        close([gradient], [2 * torch.eye(3, dtype=D)])


def test_more_than_there_is_memory_for() -> None:
    for model in (random_model(m=0), nonlinear()):
        state = model.initial_state(2)
        refused(lambda: model.forecast(state, 10**12), "forecast needs .* TB of memory, but only .* are free")  # noqa: B023
        refused(lambda: model.forecast(state, 10**40), "forecast needs .* TB of memory")  # noqa: B023
        refused(lambda: model.simulate(10**6, 10**9), "simulate needs .* TB of memory")  # noqa: B023
        refused(lambda: model.forecast(state, 1.5), "forecast needs length as a number of steps.*; got 1.5")  # type: ignore[arg-type]  # noqa: B023
        refused(lambda: model.simulate(2, -1), "simulate needs length")  # noqa: B023
    linear, y = random_model(m=0), observations(2, 4, m=0)[0]
    refused(lambda: linear.initial_lag_state(2, 10**9), "initial_lag_state needs .* GB of memory")
    refused(lambda: linear.initial_lag_state(-1, 2), "needs batch as an integer")
    refused(lambda: linear.sample(y, 10**12), "sample needs .* TB of memory")
    refused(
        lambda: linear.filter(y[..., 0]),
        r"y \(batch, length, 2\), got \(2, 4\); .* series is a row: .*y\[None, :, None\]",
    )


@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("q", [0.0, 1.0])
def test_the_definition_smooths_states_that_decay_without_noise(q: float, scale: float) -> None:
    """The covariance of the forecast, by which Rauch, Tung and Striebel divide, is then rounding in some directions."""
    A = torch.tensor([[0.0, -0.4], [-0.7, -0.7]], dtype=D)
    A = torch.block_diag(A, torch.tensor([[0.6, -0.3], [1.2, -1.2]], dtype=D))
    C = torch.tensor([[0.3, 2.1, -1.6, -0.3]], dtype=D)
    Q = torch.diag(torch.tensor([q, 0.0, 0.0, 0.0], dtype=D))
    model = LinearGaussian(A, Q, C, ONE, mean=torch.ones(4, dtype=D), covariance=scale * torch.eye(4, dtype=D))
    y = model.simulate(2, 60, generator=torch.Generator().manual_seed(0))[1]
    y[0, 20:24] = math.nan
    found, expected = model.smooth(y, form="recurrent"), model.smooth(y, form="square_root")
    for name in ("mean", "covariance", "lag_one", "initial_mean"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-8 * scale)


def test_a_prior_that_knows_nothing() -> None:
    """1e30 times the noise: P - K S K^T would keep nothing of the update."""
    model = LinearGaussian(ONE, ONE, ONE, ONE, covariance=1e30 * ONE)
    for form in FORMS:
        got = model.filter(torch.ones(1, 3, 1, dtype=D), form=form)[0].variance[0, :, 0]
        torch.testing.assert_close(got, torch.tensor([1, 2 / 3, 5 / 8], dtype=D), atol=0.02, rtol=0)


# -- what is given in their place --------------------------------------------------------------------------------------


def test_coefficients_that_are_none_and_times_that_are_no_numbers() -> None:
    model = random_model(m=0)
    for key in ("A", "Q", "C", "R"):
        refused(lambda key=key: replace(model, **{key: None}), f"needs {key} as a tensor, got NoneType")
    for key in ("Q", "R"):
        refused(lambda key=key: replace(nonlinear(), **{key: None}), f"needs {key} as a tensor, got NoneType")
    spring = sw.mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.3)
    for dt in ("a", None, 1j, True, object(), [[0.1], [0.1, 0.2]], math.nan, -1.0, 10**400):
        refused(
            lambda dt=dt: LinearGaussian.from_continuous(spring, dt, Q=ONE, R=ONE, noise_of="inputs"),  # type: ignore[misc]
            "from_continuous needs dt as a number",
        )


def test_what_is_given_to_other_calls() -> None:
    model, y = random_model(m=0), observations(2, 4, m=0)[0]
    for times in (slice(1.5, None), slice("a", "b"), slice(None, None, 2), 3):
        refused(lambda times=times: model[times], "sliced in time by")  # type: ignore[misc]
    for dtype in (torch.int64, torch.complex64):
        refused(lambda dtype=dtype: model.initial_state(2, dtype=dtype), "floating-point dtype")  # type: ignore[misc]
    for call in (model.simulate, nonlinear().simulate, lambda *_, generator: model.sample(y, 2, generator=generator)):
        refused(
            lambda call=call: call(2, 3, generator=3), "needs generator as a torch.Generator, got int; use torch.Gen"
        )  # type: ignore[operator]
    refused(lambda: LinearGaussian(*[m.to("meta") for m in (ONE, ONE, ONE, ONE)]), "A as a tensor with values")
    refused(lambda: nis(model.smooth(y)), "nis needs the Posterior .*, got Smoothed")  # type: ignore[arg-type]
    refused(lambda: nees(y, y), "nees needs an estimate of states, .* got Tensor")  # type: ignore[arg-type]
    whole = np.int64(3)
    assert model.forecast(model.initial_state(2), whole).observations.mean.shape == (2, 3, 2)  # type: ignore[arg-type]
    assert model.sample(y, whole).shape == (3, 2, 4, 3)  # type: ignore[arg-type]
    assert model.smooth_lagged(y, model.initial_lag_state(2, whole), lag=whole)[0].valid.sum() == 2  # type: ignore[arg-type]


def test_the_definition_under_vmap() -> None:
    model, y = random_model(m=0), torch.randn(3, 2, 4, 2, dtype=D)
    for call in (
        lambda y, **k: model.filter(y, form="recurrent", **k)[0].mean,
        lambda y, **k: model.smooth(y, form="recurrent", **k).mean,
    ):
        close([torch.func.vmap(call)(y)], [torch.stack([call(m) for m in y])])
        refused(
            lambda call=call: torch.func.vmap(call)(y.masked_fill(y > 1, torch.nan)), "'recurrent' depends on .*vmap"
        )  # type: ignore[misc]
        lengths = torch.tensor([[4, 2], [1, 3], [0, 4]])
        ragged = torch.func.vmap(lambda y, lengths, call=call: call(y, lengths=lengths))
        refused(lambda ragged=ragged, n=lengths: ragged(y, n), "'recurrent' depends on .*vmap")  # type: ignore[misc]


@pytest.mark.parametrize("form", FORMS[1:])
def test_forward_mode_is_refused_by_name(form: str) -> None:
    y = torch.randn(1, 5, 1, dtype=D)

    def likelihood(q: Tensor, form: str = form) -> Tensor:
        return LinearGaussian(0.9 * ONE, q * ONE, ONE, ONE).filter(y, form=form)[0].log_likelihood.sum()

    q = torch.ones((), dtype=D)
    for transform in (torch.func.jacfwd, torch.func.hessian):
        with pytest.raises(RuntimeError, match=r"forward mode.*jacrev, or .* form='recurrent'"):
            transform(likelihood)(q)
    slope = torch.func.jacfwd(likelihood)(q, "recurrent")
    close([torch.func.jacrev(likelihood)(q)], [slope])
    close(
        [torch.func.vmap(likelihood)(torch.stack([q, 2 * q]))], [torch.stack([likelihood(q), likelihood(2 * q)])], 1e-8
    )


# -- functions ---------------------------------------------------------------------------------------------------------


def branches(x: Tensor) -> Tensor:
    return x if x[0] > 0 else -x


def writes_into_its_own(x: Tensor) -> Tensor:
    found = torch.zeros(2, dtype=D)
    found[0] = x[0]
    return found


def writes_into_its_state(x: Tensor) -> Tensor:
    x[0] = 0.9 * x[0]
    x[1] = 0.9 * x[1]
    return x


@pytest.mark.parametrize("method", METHODS)
def test_functions_that_do_not_fit(method: str) -> None:
    y, u = torch.randn(2, 5, 1, dtype=D), torch.randn(2, 5, 1, dtype=D)
    for f, words in (
        (branches, r"^f runs on all rows at once, but it decides by .* torch.where\(condition, yes, no\)"),
        (lambda x: x * float(x[0].detach()), r"value .* \(.*float\(\), .item\(\)"),
        (lambda x: torch.tensor([x[0], x[1]], dtype=D), "value"),
        (lambda x: x + torch.randn(2, dtype=D), "draws random numbers"),
        (lambda x: torch.from_numpy(x.detach().numpy()), "leaves PyTorch for NumPy"),
        (writes_into_its_own, "writes into a tensor that it made .* torch.stack"),
        (lambda x: x[x > 0], "write it in operations of PyTorch"),
        (lambda x, u: x, r"^f takes \(x, u\), and this call has no u; write f\(x\); or give u="),
    ):
        for call in ("filter", "smooth"):
            refused(lambda f=f, call=call: getattr(nonlinear(f, method=method), call)(y), words)
        refused(lambda f=f: nonlinear(f, method=method).simulate(2, 3), words)
    refused(lambda: nonlinear(method=method).filter(y, u=u), r"^f takes \(x\), and this call has u; write f\(x, u\)")
    refused(lambda: nonlinear(lambda x, u: x, method=method).filter(y, u=u), r"^h takes \(x\), and this call has u")
    with pytest.raises(IndexError, match="out of bounds"):  # a fault of its own is told as it is
        nonlinear(lambda x: x[5] * x, method=method).filter(y)
    with pytest.raises(TypeError, match="unsupported operand"):
        nonlinear(lambda x: x + "a", method=method).filter(y)


@pytest.mark.parametrize("method", METHODS)
def test_functions_may_write_into_what_they_get(method: str) -> None:
    def turned(a: Tensor, b: Tensor) -> Tensor:
        a -= b
        return a

    y = torch.randn(2, 5, 1, dtype=D)
    model = nonlinear(method=method)
    other = nonlinear(writes_into_its_state, method=method, residual_x=turned, residual_y=turned)
    close(numbers(other.filter(y)[0]), numbers(model.filter(y)[0]))
    close(vars(other.smooth(y)).values(), vars(model.smooth(y)).values())
    drawn = [m.simulate(2, 5, generator=torch.Generator().manual_seed(0)) for m in (model, other)]
    close(drawn[1], drawn[0])


def test_angles_that_are_not_there() -> None:
    y = torch.randn(2, 5, 1, dtype=D)
    for places in ((3,), (0, 1), (-2,)):
        refused(
            lambda places=places: nonlinear(residual_y=angles(*places)).filter(y), r"^angles\(.*\) got vectors of 1"
        )
    for wrong in ("0", 0.0, True, [0]):
        refused(lambda wrong=wrong: angles(wrong), "angles needs places as integers")  # type: ignore[arg-type]
