"""Kalman filters of others, each as its own documentation calls it. Ours begins with x_0, before the first step.

Those that begin with the distribution of x_1 given nothing are given it: A mean, A covariance A^T + Q. Each function
takes a :class:`Problem` and gives the filtered means (batch, length, n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.benchmark.case import Missing
from statewise.benchmark.peers import require


class Problem(NamedTuple):
    """y (batch, length, p); A, Q (n, n); C (p, n); R (p, p); x_0: mean (n,), covariance (n, n). All float64."""

    y: Tensor
    A: Tensor
    Q: Tensor
    C: Tensor
    R: Tensor
    mean: Tensor
    covariance: Tensor

    @property
    def first(self) -> tuple[Tensor, Tensor]:
        """The distribution of x_1 given nothing."""
        return self.A @ self.mean, self.A @ self.covariance @ self.A.T + self.Q

    def arrays(self) -> list[Any]:
        return [m.numpy() for m in self]


Filter = Callable[[Problem], Tensor]


def filterpy() -> Filter:
    """The filter in a loop over steps that its book writes, with the log-likelihood that ``update`` computes."""
    kalman = require("filterpy.kalman")

    def run(problem: Problem) -> Tensor:
        y, A, Q, C, R, mean, covariance = problem.arrays()
        rows = []
        for series in y:
            one = kalman.KalmanFilter(dim_x=A.shape[0], dim_z=C.shape[0])
            one.F, one.Q, one.H, one.R, one.x, one.P = A, Q, C, R, mean[:, None], covariance
            means, total = [], 0.0
            for now in series:
                one.predict()
                one.update(now)
                total += one.log_likelihood
                means.append(one.x[:, 0])
            rows.append(torch.from_numpy(require("numpy").stack(means)))
        return torch.stack(rows)

    return run


def pykalman() -> Filter:
    kalman = require("pykalman").KalmanFilter

    def run(problem: Problem) -> Tensor:
        y, A, Q, C, R, *_ = problem.arrays()
        mean, covariance = (m.numpy() for m in problem.first)
        one = kalman(A, C, Q, R, initial_state_mean=mean, initial_state_covariance=covariance)
        return torch.stack([torch.from_numpy(one.filter(series)[0]) for series in y])

    return run


def simdkalman() -> Filter:
    kalman = require("simdkalman").KalmanFilter

    def run(problem: Problem) -> Tensor:
        y, A, Q, C, R, *_ = problem.arrays()
        mean, covariance = (m.numpy() for m in problem.first)
        found = kalman(A, Q, C, R).compute(
            *(y, 0, mean, covariance),
            **{"smoothed": False, "filtered": True, "observations": False, "log_likelihood": True},
        )
        return torch.from_numpy(found.filtered.states.mean)

    return run


def torch_kf() -> Filter:
    package = require("torch_kf")

    def run(problem: Problem) -> Tensor:
        mean, covariance = problem.first
        batch, n = len(problem.y), len(mean)
        begin = package.GaussianState(
            mean.expand(batch, n).unsqueeze(-1).clone(), covariance.expand(batch, n, n).clone()
        )
        one = package.KalmanFilter(problem.A, problem.C, problem.Q, problem.R)
        measures = problem.y.transpose(0, 1).unsqueeze(-1)
        return one.filter(begin, measures, return_all=True).mean.squeeze(-1).transpose(0, 1)

    return run


def statsmodels() -> Filter:
    """Its compiled filter, in the univariate or the usual form as it chooses; one series after the other."""
    representation = require("statsmodels.tsa.statespace.kalman_filter").KalmanFilter

    def run(problem: Problem) -> Tensor:
        y, A, Q, C, R, *_ = problem.arrays()
        mean, covariance = (m.numpy() for m in problem.first)
        rows = []
        for series in y:
            one = representation(k_endog=C.shape[0], k_states=A.shape[0])
            one.bind(series)
            one["transition"], one["design"], one["state_cov"], one["obs_cov"] = A, C, Q, R
            one["selection"] = torch.eye(A.shape[0], dtype=torch.float64).numpy()
            one.initialize_known(mean, covariance)
            rows.append(torch.from_numpy(one.filter().filtered_state.T.copy()))
        return torch.stack(rows)

    return run


def dynamax() -> Filter:
    """Compiled before it is timed."""
    jax, parameters, filter_ = _dynamax()
    run_all = jax.jit(jax.vmap(filter_, in_axes=(None, 0)))

    def run(problem: Problem) -> Tensor:
        found = run_all(parameters(problem), problem.y.numpy())
        return torch.from_numpy(jax.device_get(found.filtered_means).copy())

    return run


def dynamax_gradients() -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """The log-likelihood and its gradients by A, Q, C and R, compiled before it is timed."""
    jax, parameters, filter_ = _dynamax()

    def likelihood(given: Any, problem: Any, y: Any) -> Any:
        A, Q, C, R = given
        one = problem._replace(
            dynamics=problem.dynamics._replace(weights=A, cov=Q), emissions=problem.emissions._replace(weights=C, cov=R)
        )
        return jax.vmap(lambda series: filter_(one, series).marginal_loglik)(y).sum()

    compiled = jax.jit(jax.value_and_grad(likelihood))

    def run(*problem: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        given = Problem(*(m.detach() for m in problem))
        arrays = tuple(m.numpy() for m in given[1:5])
        value, slopes = jax.device_get(compiled(arrays, parameters(given), given.y.numpy()))
        return torch.tensor(float(value)), tuple(torch.from_numpy(m.copy()) for m in slopes)

    return run


def _dynamax() -> tuple[Any, Any, Any]:
    require("dynamax", "bench-jax")
    try:
        jax, ssm = require("jax", "bench-jax"), require("dynamax.linear_gaussian_ssm", "bench-jax")
    except ImportError as error:
        raise Missing(f"dynamax cannot be imported here: {error}") from error
    jax.config.update("jax_enable_x64", True)

    def parameters(problem: Problem) -> Any:
        _, A, Q, C, R, *_ = problem.arrays()
        mean, covariance = (m.numpy() for m in problem.first)
        model = ssm.LinearGaussianSSM(A.shape[0], C.shape[0])
        return model.initialize(
            jax.random.PRNGKey(0),
            **{"initial_mean": mean, "initial_covariance": covariance},
            **{"dynamics_weights": A, "dynamics_covariance": Q, "emission_weights": C, "emission_covariance": R},
        )[0]

    return jax, parameters, ssm.lgssm_filter


def torch_loop(*problem: Tensor) -> Tensor:
    """The log-likelihood as everybody writes it: the textbook's covariances in a loop that autograd follows."""
    y, A, Q, C, R, mean, P = problem
    x, total = mean.expand(len(y), -1), y.new_zeros(())
    P = P.expand(len(y), *P.shape)
    for now in y.unbind(1):
        x, P = x @ A.T, A @ P @ A.T + Q
        S, e = C @ P @ C.T + R, now - x @ C.T
        K = torch.linalg.solve(S, C @ P).mT
        total = (
            total
            + torch.distributions.MultivariateNormal(torch.zeros_like(e), S, validate_args=False).log_prob(e).sum()
        )
        x, P = x + (K @ e.unsqueeze(-1)).squeeze(-1), P - K @ S @ K.mT
    return total
