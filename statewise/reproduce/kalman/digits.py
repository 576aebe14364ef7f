"""How many digits are left: the textbook's two updates and our forms beside the same filter with 50 digits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.estimation import LinearGaussian

Array = np.ndarray[Any, Any]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TEXTBOOK = ("textbook", "joseph")


class Hard(NamedTuple):
    """A model all of whose numbers float32 holds, and its series (length, p), float64 but rounded to float32."""

    model: LinearGaussian
    y: Tensor


def ill_conditioned(length: int, seed: int) -> Hard:
    """A prior of 2^20 and two sensors of 2^-20 that nearly agree: the first update leaves a condition of 10^12."""
    D = torch.float64
    A = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.75, 0.5], [0.0, 0.0, 0.75]], dtype=D)
    C = torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0**-10, 0.0]], dtype=D)
    eye = torch.eye(3, dtype=D)
    model = LinearGaussian(A, 2.0**-30 * eye, C, 2.0**-20 * eye[:2, :2], covariance=2.0**20 * eye)
    return Hard(model, _drawn(model, length, seed))


def long(length: int, seed: int) -> Hard:
    """A swinging and a wandering part, of which a precise sensor sees the sum: a condition of 10^12 at every step."""
    D = torch.float64
    c, s = 0.999 * math.cos(0.05), 0.999 * math.sin(0.05)
    A = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1 - 2.0**-14]], dtype=D).float().double()
    Q = torch.diag(torch.tensor([2.0**-6, 2.0**-6, 2.0**4], dtype=D))
    C = torch.tensor([[1.0, 0.0, 1.0]], dtype=D)
    R = torch.tensor([[2.0**-34]], dtype=D)
    model = LinearGaussian(A, Q, C, R, covariance=torch.diag(torch.tensor([1.0, 1.0, 2.0**16], dtype=D)))
    return Hard(model, _drawn(model, length, seed))


def _drawn(model: LinearGaussian, length: int, seed: int) -> Tensor:
    _, y = model.simulate(1, length, generator=torch.Generator().manual_seed(seed))
    return y[0].float().double()


class Exact(NamedTuple):
    """With 50 digits: means and variances at the steps ``at``, as mpmath's numbers, and log p(y)."""

    at: list[int]
    means: list[list[Any]]
    variances: list[list[Any]]
    log_likelihood: Any


def exactly(hard: Hard, every: int) -> Exact:
    """The textbook filter in mpmath. Once a covariance is the one before in 48 digits, its gain stays."""
    import mpmath
    from mpmath import mp

    mp.dps = 50
    model, n = hard.model, hard.model.n_states
    A, Q, C, R, P = (mpmath.matrix(m.tolist()) for m in (model.A, model.Q, model.C, model.R, model._covariance))
    CA, still = (C * A).tolist(), False
    m, total, found = [mpmath.mpf(0)] * n, mpmath.mpf(0), Exact([], [], [], None)
    K: list[Any] = []
    A_rows, inverse, constant = A.tolist(), K, total
    for t, y_t in enumerate(hard.y.tolist()):
        if not still:
            before, P = P, A * P * A.T + Q
            S = C * P * C.T + R
            gain = P * C.T * S**-1
            P = P - gain * S * gain.T
            P = (P + P.T) / 2
            K, inverse = gain.tolist(), (S**-1).tolist()
            constant = mpmath.log(mpmath.det(S)) + len(y_t) * mpmath.log(2 * mpmath.pi)
            still = max(abs(P[i, j] - before[i, j]) for i in range(n) for j in range(n)) < mpmath.mpf(10) ** -48
        v = [y - _dot(row, m) for y, row in zip(y_t, CA)]
        m = [_dot(row, m) + _dot(own, v) for row, own in zip(A_rows, K)]
        total -= (_dot(v, [_dot(row, v) for row in inverse]) + constant) / 2
        if t % every == every - 1:
            found.at.append(t)
            found.means.append(m)
            found.variances.append([P[i, i] for i in range(n)])
    return found._replace(log_likelihood=total)


def _dot(row: list[Any], x: list[Any]) -> Any:
    return sum((a * b for a, b in zip(row[1:], x[1:])), row[0] * x[0])


class Run(NamedTuple):
    """means (length, n) and covariances (length, n, n), as computed; those of a factor L are L L^T in float64."""

    means: Array
    covariances: Array
    log_likelihood: float


def by_form(hard: Hard, dtype: torch.dtype, form: str) -> Run:
    model = _as(hard.model, dtype)
    posterior, _ = model.filter(hard.y[None].to(dtype), form=form)
    L = posterior.factor[0].double()
    return Run(posterior.mean[0].numpy(), (L @ L.mT).numpy(), float(posterior.log_likelihood))


def _as(model: LinearGaussian, dtype: torch.dtype) -> LinearGaussian:
    A, Q, C, R, P = (m.to(dtype) for m in (model.A, model.Q, model.C, model.R, model._covariance))
    return LinearGaussian(A, Q, C, R, covariance=P)


def by_textbook(hard: Hard, dtype: torch.dtype, *, joseph: bool) -> Run:
    """P - K S K^T, or Joseph's (I - K C) P (I - K C)^T + K R K^T, made symmetric, in the dtype; NaN once S has no
    inverse.

    Source:  Kalman 1960; Bucy & Joseph 1968, Filtering for Stochastic Processes, p. 51.
    """
    model = _as(hard.model, dtype)
    A, Q, C, R, P = (m.numpy() for m in (model.A, model.Q, model.C, model.R, model._covariance))
    n, length = model.n_states, len(hard.y)
    one, m = np.eye(n, dtype=A.dtype), np.zeros(n, dtype=A.dtype)
    means, covariances = np.full((length, n), np.nan, A.dtype), np.full((length, n, n), np.nan, A.dtype)
    total = 0.0
    with np.errstate(all="ignore"):
        for t, y in enumerate(hard.y.to(dtype).numpy()):
            m, P = A @ m, A @ P @ A.T + Q
            v, S = y - C @ m, C @ P @ C.T + R
            try:
                inverse = np.linalg.inv(S)
            except np.linalg.LinAlgError:
                return Run(means, covariances, math.nan)
            K = P @ C.T @ inverse
            if joseph:
                left = one - K @ C
                P = left @ P @ left.T + K @ R @ K.T
            else:
                P = P - K @ S @ K.T
            P = (P + P.T) / 2
            m = m + K @ v
            total -= 0.5 * float(v @ inverse @ v + np.log(np.linalg.det(S)) + len(v) * math.log(2 * math.pi))
            means[t], covariances[t] = m, P
    return Run(means, covariances, total)


def compared(run: Run, exact: Exact) -> dict[str, Any]:
    """lowest:      the smallest eigenvalue of any step's correlations; below 0 a covariance is none
    indefinite:  at how many steps it is below 0, or nothing is left but NaN
    mean_error:  the largest, in standard deviations       variance_error: the largest, relative
    likelihood_error: of log p(y), relative
    """
    import mpmath

    P = torch.as_tensor(np.asarray(run.covariances, np.float64))
    own = P.diagonal(dim1=-2, dim2=-1)
    broken = ~P.isfinite().all(-1).all(-1) | (own <= 0).any(-1)
    scale = torch.where(own > 0, own, 1).sqrt().nan_to_num(nan=1.0)
    scaled = P / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    one = torch.eye(P.shape[-1], dtype=P.dtype)
    lowest = torch.linalg.eigvalsh(torch.where(broken[:, None, None], one, scaled))[:, 0]
    mean_error = variance_error = 0.0
    for t, means, variances in zip(exact.at, exact.means, exact.variances):
        for i, (m, p) in enumerate(zip(means, variances)):
            got, variance = float(run.means[t, i]), float(run.covariances[t, i, i])
            away = float(abs(mpmath.mpf(got) - m) / mpmath.sqrt(p)) if math.isfinite(got) else math.inf
            off = float(abs(mpmath.mpf(variance) / p - 1)) if math.isfinite(variance) else math.inf
            mean_error, variance_error = max(mean_error, away), max(variance_error, off)
    total = run.log_likelihood
    return {
        "lowest": float(lowest[~broken].min()) if bool((~broken).any()) else None,
        "steps": len(P),
        "indefinite": int((broken | (lowest < 0)).sum()),
        "mean_error": mean_error,
        "variance_error": variance_error,
        "likelihood_error": float(abs(mpmath.mpf(total) / exact.log_likelihood - 1)) if math.isfinite(total) else None,
    }
