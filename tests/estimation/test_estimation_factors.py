"""Square roots of covariances, and models at the edge of what floating point can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mpmath
import pytest
import torch
from estimation_models import D, random_model
from mpmath import mp
from test_estimation import FAST, close
from torch import Tensor

from statewise.estimation import LinearGaussian
from statewise.estimation.factors import factor, lower, positive


@pytest.mark.parametrize("shape", [(4, 7), (2, 5, 5), (3, 4, 2), (1, 1), (0, 3, 4)])
def test_lower(shape: tuple[int, ...]) -> None:
    M = torch.randn(*shape, dtype=D, requires_grad=True)
    X = positive(lower(M))
    close([X @ X.mT, X], [M @ M.mT, X.tril()], 1e-12)
    assert bool((X.diagonal(dim1=-2, dim2=-1) >= 0).all())
    if shape[-1] >= shape[-2]:
        assert torch.autograd.gradcheck(lambda M: positive(lower(M)), M)


def test_gradients_of_a_singular_rest() -> None:
    thin = torch.randn(3, 2, dtype=D, requires_grad=True)
    top, W = torch.randn(2, 5, dtype=D), torch.randn(3, 3, dtype=D)

    def run(thin: Tensor) -> Tensor:
        X = lower(torch.cat([top, torch.cat([thin, thin.new_zeros(3, 3)], -1)]), 2)
        gain = torch.linalg.solve_triangular(X[:2, :2], X[2:, :2], upper=False, left=False)
        rest = X[2:, 2:] @ X[2:, 2:].mT
        return gain.square().sum() + (W * rest).sum() + X[:2, :2].diagonal().abs().log().sum()

    assert torch.autograd.gradcheck(run, thin)


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0, 1.0), (1e-9, 1.0, 1e6, 1e-3)])
def test_factor(rank: int, scales: tuple[float, ...]) -> None:
    G = (torch.randn(4, rank, dtype=D) * torch.tensor(scales, dtype=D)[:, None]).requires_grad_()
    L = factor(G @ G.mT)
    unit = torch.tensor(scales, dtype=D)
    close([(L @ L.mT) / torch.outer(unit, unit)], [(G @ G.mT) / torch.outer(unit, unit)], 1e-12)
    assert bool((L.tril() == L).all())
    W = torch.randn(4, 4, dtype=D) / torch.outer(unit, unit)
    (got,) = torch.autograd.grad((W * (L @ L.mT)).sum(), G)
    (want,) = torch.autograd.grad((W * (G @ G.mT)).sum(), G)
    close([got * unit[:, None]], [want * unit[:, None]], 1e-6)


def numerically(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of f by central differences."""
    steps = 1e-6 * torch.eye(x.numel(), dtype=D).reshape(-1, *x.shape)
    return torch.stack([(f(x + step) - f(x - step)) / 2e-6 for step in steps]).reshape(x.shape)


@pytest.mark.parametrize("size_and_rank", [(2, 1), (3, 2), (4, 1), (5, 2), (5, 3), (4, 4)])
@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_the_factor_itself(size_and_rank: tuple[int, int], dependent: bool, seed: int) -> None:
    """The definition is unique: triangular, a column of zeros where a row depends on those above. Its own numbers, not
    only L L^T, have the derivative of finite differences, as long as the rank stays and which rows depend.
    """
    (n, rank), g = size_and_rank, torch.Generator().manual_seed(seed)
    G, W = torch.randn(n, rank, dtype=D, generator=g), torch.randn(n, n, dtype=D, generator=g)

    def root(G: Tensor) -> Tensor:
        return torch.cat([G[:1], 2 * G[:1], G[2:]]) if dependent else G

    def made(G: Tensor) -> Tensor:
        return factor(root(G) @ root(G).mT)

    L = made(G)
    close([L @ L.mT], [root(G) @ root(G).mT], 1e-12)
    true_rank = int(torch.linalg.matrix_rank(root(G)))
    assert int((L.diagonal() > 0).sum()) == int((L.abs().sum(0) > 0).sum()) == true_rank
    for f in (lambda G: (W * made(G)).sum(), lambda G: (W * (made(G) @ made(G).mT)).square().sum()):
        leaf = G.clone().requires_grad_()
        (got,) = torch.autograd.grad(f(leaf), leaf)
        want = numerically(f, G)
        close([got / want.abs().max()], [want / want.abs().max()], 1e-6)


def test_gradients_of_a_singular_prior_and_of_what_a_filter_returns() -> None:
    """``initial_state`` and the factors of the definition go through :func:`factor`."""
    g = torch.Generator().manual_seed(3)
    base, W = random_model(m=0, correlated=False), torch.randn(3, 3, dtype=D, generator=g)
    y, G = torch.randn(1, 1, 2, dtype=D, generator=g), torch.randn(3, 2, dtype=D, generator=g)

    def of_prior(G: Tensor) -> Tensor:
        return (W * replace(base, covariance=G @ G.mT).initial_state(1).factor[0]).sum()

    def of_posterior(G: Tensor) -> Tensor:
        model = replace(base, Q=torch.zeros(3, 3, dtype=D), covariance=G @ G.mT)
        return (W * model.filter(y, form="recurrent")[0].factor[0, 0]).sum()

    for f in (of_prior, of_posterior):
        leaf = G.clone().requires_grad_()
        (got,) = torch.autograd.grad(f(leaf), leaf)
        close([got], [numerically(f, G)], 1e-6)


@pytest.mark.parametrize("form", FAST)
def test_float32_never_indefinite(form: str) -> None:
    """Two nearly equal precise sensors and a vague prior: the textbook's P - K S K^T loses positivity in float32."""
    A = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    C = torch.tensor([[1.0, 0.0], [1.0, 1e-3]])
    model = LinearGaussian(A, 1e-8 * torch.eye(2), C, 1e-6 * torch.eye(2), covariance=1e6 * torch.eye(2))
    length = 3000 if form == "square_root" else 20_000
    y = torch.zeros(1, length, 2)
    posterior, state = model.filter(y, model.initial_state(1), form=form)
    P = posterior.covariance.double()
    assert bool(P.isfinite().all())
    assert bool((torch.linalg.eigvalsh((P + P.mT) / 2)[..., 0] > -1e-7 * P.diagonal(dim1=-2, dim2=-1).amax(-1)).all())
    assert state is not None
    wide = LinearGaussian(
        *[m.double() for m in (model.A, model.Q, model.C, model.R)], covariance=1e6 * torch.eye(2, dtype=D)
    )
    want = wide.filter(y.double()[:, :100], form="square_root")[0]
    ratio = posterior.variance[:, :100].double() / want.variance
    assert float((ratio - 1).abs().max()) < 1e-2
    P = 1e6 * torch.eye(2)
    for _ in range(3):
        P = A @ P @ A.T + model.Q
        S = C @ P @ C.T + model.R
        P = P - P @ C.T @ torch.linalg.pinv(S) @ C @ P
    assert float(torch.linalg.eigvalsh((P + P.T) / 2)[0]) < 0 or bool((P - P.T).abs().max() > 1e-3 * P.abs().max())


def exactly(model: LinearGaussian, y: Tensor) -> tuple[list, list, mpmath.mpf]:
    """The textbook filter with 50 digits: means, covariances, log-likelihood."""
    mp.dps = 50
    A, Q, C, R, P = (mpmath.matrix(m.tolist()) for m in (model.A, model.Q, model.C, model.R, model._covariance))
    m, total, means, covariances = mpmath.matrix(model._mean.tolist()), mpmath.mpf(0), [], []
    for y_t in y.tolist():
        m, P = A * m, A * P * A.T + Q
        v, S = mpmath.matrix(y_t) - C * m, C * P * C.T + R
        K = P * C.T * S**-1
        m, P = m + K * v, P - K * S * K.T
        total -= ((v.T * S**-1 * v)[0] + mpmath.log(mpmath.det(S)) + len(v) * mpmath.log(2 * mpmath.pi)) / 2
        means.append(m.copy())
        covariances.append(P.copy())
    return means, covariances, total


@pytest.mark.parametrize("form", FAST)
def test_ill_conditioned_beside_50_digits(form: str) -> None:
    """A prior 10^12 times as wide as the noise, and two sensors that nearly agree."""
    A = torch.tensor([[1.0, 0.1], [0.0, 1.0]], dtype=D)
    C = torch.tensor([[1.0, 0.0], [1.0, 1e-4]], dtype=D)
    model = LinearGaussian(
        A, 1e-6 * torch.eye(2, dtype=D), C, 1e-6 * torch.eye(2, dtype=D), covariance=1e6 * torch.eye(2, dtype=D)
    )
    y = torch.randn(1, 30, 2, dtype=D, generator=torch.Generator().manual_seed(0))
    means, covariances, total = exactly(model, y[0])
    posterior, _ = model.filter(y, form=form)
    worst_mean = worst_variance = 0.0
    for t in range(30):
        for i in range(2):
            variance = covariances[t][i, i]
            worst_mean = max(
                worst_mean, float(abs(mpmath.mpf(float(posterior.mean[0, t, i])) - means[t][i]) / mpmath.sqrt(variance))
            )
            worst_variance = max(
                worst_variance, float(abs(mpmath.mpf(float(posterior.variance[0, t, i])) / variance - 1))
            )
    assert worst_mean < 1e-6
    assert worst_variance < 1e-8
    assert float(abs(mpmath.mpf(float(posterior.log_likelihood)) / total - 1)) < 1e-10
    textbook, _ = model.filter(y, form="recurrent")
    lost = max(abs(float(textbook.variance[0, t, 1]) / float(covariances[t][1, 1]) - 1) for t in range(30))
    assert lost > 10 * worst_variance


def test_models_of_lower_rank() -> None:
    """One noise for three states, a state known exactly, an observation without noise: forms agree, none is NaN."""
    G = torch.tensor([[1.0], [0.5], [0.0]], dtype=D)
    model = random_model(m=0, correlated=False)
    zero = torch.zeros(3, 3, dtype=D)
    for R in (model.R, torch.diag(torch.tensor([0.0, 1.0], dtype=D))):
        thin = LinearGaussian(model.A, G @ G.T, model.C, R, covariance=zero)
        _, y = thin.simulate(2, 12, generator=torch.Generator().manual_seed(0))
        want, smoothed = thin.filter(y, form="recurrent")[0], thin.smooth(y, form="recurrent")
        for form in FAST:
            got, again = thin.filter(y, form=form)[0], thin.smooth(y, form=form)
            close(
                [got.mean, got.covariance, got.log_likelihood], [want.mean, want.covariance, want.log_likelihood], 1e-7
            )
            close(
                [again.mean, again.covariance, again.lag_one],
                [smoothed.mean, smoothed.covariance, smoothed.lag_one],
                1e-6,
            )


@pytest.mark.parametrize("form", FAST)
def test_float32_far_from_zero(form: str) -> None:
    """A level of 10^4 and more, known to about 1, from a vague prior: only the level's last digits are lost."""
    A, C = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    Q, one = torch.diag(torch.tensor([1e-2, 1e-4])), torch.eye(1)
    narrow = LinearGaussian(A, Q, C, one, mean=torch.tensor([1e4, 0.0]), covariance=1e6 * torch.eye(2))
    given = {"mean": narrow._mean.double(), "covariance": narrow._covariance.double()}
    wide = LinearGaussian(*[m.double() for m in (A, Q, C, one)], **given)
    _, y = wide.simulate(1, 500, generator=torch.Generator().manual_seed(0))
    want, got = wide.smooth(y, form="square_root"), narrow.smooth(y.float(), form=form)
    size = float(want.mean.abs().max())
    assert size > 5e3
    close([got.mean[..., 0].double() / size], [want.mean[..., 0] / size], 2e-6)
    close([got.log_likelihood.double()], [want.log_likelihood], 5e-3)
    filtered, defined = narrow.filter(y.float(), form=form)[0], wide.filter(y, form="square_root")[0]
    close([filtered.mean[..., 0].double() / size], [defined.mean[..., 0] / size], 2e-6)
