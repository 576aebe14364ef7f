"""Random linear-Gaussian models, and the answer that needs no filter: the joint normal distribution of everything."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.estimation import GaussianState, LinearGaussian, Posterior

D = torch.float64
FAST = ("square_root", "parallel")
MASKS: dict[str, dict[str, Tensor]] = {
    "whole": {},
    "lengths": {"lengths": torch.tensor([9, 0, 5])},
    "starts": {"starts": torch.tensor([[1, 0, 0, 1, 1, 0, 0, 0, 0], [0] * 9, [0, 0, 0, 0, 0, 0, 1, 0, 0]]).bool()},
    "both": {
        "starts": torch.tensor([[0, 0, 1, 0, 1, 0, 0, 0, 0], [0, 1] + [0] * 7, [1, 0, 0, 0, 0, 0, 1, 0, 0]]).bool(),
        "lengths": torch.tensor([9, 6, 4]),
    },
}
VARIES = {"constant": {}, "in time": {"length": 9}, "in time and rows": {"length": 9, "batch": 3}}


def close(a: Any, b: Any, atol: float = 1e-10) -> None:
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, atol=atol, rtol=atol)


def numbers(posterior: Posterior) -> tuple[Tensor, ...]:
    return (
        *(posterior.mean, posterior.factor, posterior.log_densities),
        *(posterior.innovation, posterior.innovation_factor),
    )


def covariance(*shape: int, generator: torch.Generator) -> Tensor:
    root = torch.randn(*shape[:-1], shape[-1] + 2, dtype=D, generator=generator)
    return root @ root.mT / 4


def random_model(
    *,
    n: int = 3,
    p: int = 2,
    m: int = 2,
    length: int | None = None,
    batch: int = 1,
    correlated: bool = True,
    seed: int = 0,
) -> LinearGaussian:
    """With everything that a model may have; it varies with time if it has a length."""
    g = torch.Generator().manual_seed(seed)
    lead = () if length is None else (batch, length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=D, generator=g)

    joint = covariance(*lead, n + p, n + p, generator=g)
    return LinearGaussian(
        0.5 * normal(*lead, n, n),
        joint[..., :n, :n],
        normal(*lead, p, n),
        joint[..., n:, n:],
        B=normal(n, m) if m else None,
        b=normal(*lead, n),
        D=normal(p, m) if m else None,
        d=normal(p),
        S=joint[..., :n, n:] if correlated else None,
        mean=normal(n),
        covariance=covariance(n, n, generator=g),
    )


def observations(
    batch: int, length: int, p: int = 2, m: int = 2, *, missing: bool = False, seed: int = 1
) -> tuple[Tensor, Tensor | None]:
    """y, with numbers and a whole step missing if asked for, and u."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(batch, length, p, dtype=D, generator=g)
    if missing:
        y = y.masked_fill(torch.rand(batch, length, p, generator=g) < 0.3, torch.nan)
        y[:, length // 2] = torch.nan
    return y, torch.randn(batch, length, m, dtype=D, generator=g) if m else None


class Answer(NamedTuple):
    """Of one row: mean (length + 1, n) and covariance (length + 1, n, length + 1, n) of x_0 ... x_T, and log p(y)."""

    mean: Tensor
    covariance: Tensor
    log_likelihood: Tensor


def by_conditioning(model: LinearGaussian, y: Tensor, u: Tensor | None, row: int) -> Answer:
    """x_0 ... x_T given what was observed of the row's y: one big normal distribution, conditioned once."""
    length, p, n = y.shape[1], model.n_observations, model.n_states

    def at(name: str, t: int, *shape: int) -> Tensor:
        value = getattr(model, name)
        if value is None:
            return torch.zeros(*shape, dtype=D)
        if value.ndim == len(shape):
            return value
        return value[row % value.shape[0], t % value.shape[1]]

    assert model.mean is not None
    assert model.covariance is not None
    size = n + length * (n + p)  # x_0, and the noises of all steps
    noise = torch.zeros(size, size, dtype=D)
    noise[:n, :n] = model.covariance
    x, offset = torch.zeros(n, size, dtype=D), model.mean
    x[:, :n] = torch.eye(n, dtype=D)
    states, means, seen, seen_means = [x], [offset], [], []
    for t in range(length):
        w, v = n + t * (n + p), n + t * (n + p) + n
        noise[w:v, w:v], noise[v : v + p, v : v + p] = at("Q", t, n, n), at("R", t, p, p)
        S = at("S", t, n, p)
        noise[w:v, v : v + p], noise[v : v + p, w:v] = S, S.T
        A, C = at("A", t, n, n), at("C", t, p, n)
        now = torch.zeros(0, dtype=D) if u is None else u[row, t]
        x = A @ x
        x[:, w:v] += torch.eye(n, dtype=D)
        offset = A @ offset + at("B", t, n, len(now)) @ now + at("b", t, n)
        observed = C @ x
        observed[:, v : v + p] += torch.eye(p, dtype=D)
        states.append(x)
        means.append(offset)
        seen.append(observed)
        seen_means.append(C @ offset + at("D", t, p, len(now)) @ now + at("d", t, p))
    X, mean = torch.cat(states), torch.cat(means)
    kept = ~y[row].flatten().isnan()
    Y, y_mean, values = torch.cat(seen)[kept], torch.cat(seen_means)[kept], y[row].flatten()[kept]
    joint, cross = Y @ noise @ Y.T, X @ noise @ Y.T
    gain = torch.linalg.solve(joint, cross, left=False)
    rest = values - y_mean
    log_likelihood = (
        -(rest @ torch.linalg.solve(joint, rest) + torch.logdet(joint) + len(rest) * math.log(2 * math.pi)) / 2
    )
    P = X @ noise @ X.T - gain @ cross.T
    return Answer((mean + gain @ rest).reshape(-1, n), P.reshape(length + 1, n, length + 1, n), log_likelihood)


def random_state(model: LinearGaussian, batch: int) -> GaussianState:
    g = torch.Generator().manual_seed(7)
    n = model.n_states
    mean = torch.randn(batch, n, dtype=D, generator=g)
    return GaussianState(mean, torch.linalg.cholesky(covariance(batch, n, n, generator=g)))


def refused(call: Any, match: str) -> None:
    with pytest.raises(sw.InputError, match=match) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 400
