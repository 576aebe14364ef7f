"""What a series is the sum of: each component is a small linear system with a part of the state of its own."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from statewise.configuration import Config
from statewise.configuration.types import Condition, Count, Words
from statewise.errors import ConfigError
from statewise.estimation.structural.parameters import Parameter

if TYPE_CHECKING:
    from statewise.estimation.structural.model import Structural

Parameters = Mapping[str, Tensor]
Period = Annotated[float, Condition(lambda period: 2 <= period < math.inf, " of at least 2")]
Periods = Annotated[
    tuple[float, float],
    Condition(lambda ends: 2 <= ends[0] < ends[1] < math.inf),
    Words("two numbers of steps, 2 <= low < high"),
]


class Block(NamedTuple):
    """A component for given parameters; batch may be 1 where all series have one.

    A: (batch, n, n)   q: (batch, n), the variances of its noise   c: (n,), what it adds to the series; None where that
    changes with time   P: (batch, n, n), the covariance of its first state, None if that is diffuse
    log_determinant: (batch,), log |det A|, of a diffuse one
    """

    A: Tensor
    q: Tensor
    c: Tensor | None
    P: Tensor | None
    log_determinant: Tensor


@dataclass(frozen=True, kw_only=True)
class Component(Config):
    """One of the terms of a :class:`~statewise.estimation.structural.Structural` model. Components are added.

    reads:  what to report besides the term itself, by name: rows over its states
    """

    title: ClassVar[str]

    @property
    def parameters(self) -> dict[str, Parameter]:
        """By name, in the order of its free numbers."""
        return {}

    @property
    @abc.abstractmethod
    def n_states(self) -> int: ...

    @abc.abstractmethod
    def block(self, p: Parameters, like: Tensor) -> Block:
        """The system for parameters (batch,) each, in the dtype and on the device of ``like``."""

    def reads(self, like: Tensor) -> dict[str, Tensor]:
        return {}

    def __add__(self, other: object) -> Structural:
        from statewise.estimation.structural.model import Structural

        return Structural((self,)) + other  # type: ignore[arg-type]

    def __radd__(self, other: object) -> Structural:
        from statewise.estimation.structural.model import Structural

        return Structural((self,)).__radd__(other)  # type: ignore[arg-type]


def _diffuse(A: Tensor, q: Tensor, c: Tensor | None, log_determinant: Tensor | None = None) -> Block:
    zero = A.new_zeros(1) if log_determinant is None else log_determinant
    return Block(A, q, c, None, zero)


def _variances(parts: list[Tensor | None], like: Tensor) -> Tensor:
    """(batch, n), None being no noise."""
    rows = torch.broadcast_tensors(*[like.new_zeros(1) if part is None else part for part in parts])
    return torch.stack(rows, -1)


@dataclass(frozen=True, kw_only=True)
class Level(Component):
    """A level that walks: mu_t = mu_{t-1} + w_t. stochastic=False: a constant."""

    title = "level"
    stochastic: bool = True

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"variance": Parameter("variance")} if self.stochastic else {}

    @property
    def n_states(self) -> int:
        return 1

    def block(self, p: Parameters, like: Tensor) -> Block:
        return _diffuse(like.new_ones(1, 1, 1), _variances([p.get("variance")], like), like.new_ones(1))


@dataclass(frozen=True, kw_only=True)
class Trend(Component):
    """A level with a slope: mu_t = mu_{t-1} + nu_{t-1} + w_t, nu_t = phi nu_{t-1} + z_t: the local linear trend.

    smooth:      only the slope has noise, so that the level is smooth
    damped:      phi is learned, inside (0, 1); else it is 1
    stochastic:  False for a straight line
    """

    title = "trend"
    smooth: bool = False
    damped: bool = False
    stochastic: bool = True

    def __post_init__(self) -> None:
        if self.smooth and not self.stochastic:
            raise ConfigError(
                "Trend.smooth=True needs noise in its slope, and stochastic=False has none; leave out one"
            )

    @property
    def parameters(self) -> dict[str, Parameter]:
        names = ["slope_variance"] if self.smooth else ["level_variance", "slope_variance"]
        found = {name: Parameter("variance") for name in (names if self.stochastic else [])}
        return found | ({"damping": Parameter("damping")} if self.damped else {})

    @property
    def n_states(self) -> int:
        return 2

    def block(self, p: Parameters, like: Tensor) -> Block:
        phi = p.get("damping", like.new_ones(1))
        one, zero = torch.ones_like(phi), torch.zeros_like(phi)
        A = torch.stack([torch.stack([one, one], -1), torch.stack([zero, phi], -1)], -2)
        q = _variances([p.get("level_variance"), p.get("slope_variance")], like)
        return _diffuse(A, q, like.new_tensor([1.0, 0.0]), phi.log())

    def reads(self, like: Tensor) -> dict[str, Tensor]:
        return {"slope": like.new_tensor([[0.0, 1.0]])}


@dataclass(frozen=True, kw_only=True)
class Seasonal(Component):
    """A pattern that repeats after ``period`` steps, and may change slowly.

    harmonics:   None: one number for each step of the period, which sum to noise over any period ("dummy" seasonal).
                 Otherwise the number of waves of the period ("trigonometric"), which need not be a whole number then,
                     such as 365.25 / 7 weeks.
    stochastic:  False for a pattern that stays
    Source:      Harvey 1989, Forecasting, Structural Time Series Models and the Kalman Filter, sec. 2.3.4.
    """

    title = "seasonal"
    period: Period
    harmonics: Count | None = None
    stochastic: bool = True

    def __post_init__(self) -> None:
        if self.harmonics is None and self.period != round(self.period):
            raise ConfigError(
                f"Seasonal.period={self.period:g} without harmonics needs a whole number of steps; with harmonics= it "
                "may be any number"
            )
        if self.harmonics is not None and 2 * self.harmonics > self.period:
            raise ConfigError(
                f"Seasonal.harmonics={self.harmonics} is more than a period of {self.period:g} steps can have; give at "
                f"most {int(self.period // 2)}"
            )

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"variance": Parameter("variance")} if self.stochastic else {}

    @property
    def n_states(self) -> int:
        if self.harmonics is None:
            return round(self.period) - 1
        return 2 * self.harmonics - (2 * self.harmonics == self.period)

    def block(self, p: Parameters, like: Tensor) -> Block:
        n = self.n_states
        A, c = like.new_zeros(1, n, n), like.new_zeros(n)
        if self.harmonics is None:
            A[0, 0], c[0] = -1.0, 1.0
            A[0, 1:, :-1] = torch.eye(n - 1, dtype=like.dtype, device=like.device)
            moved: list[Tensor | None] = [p.get("variance"), *[None] * (n - 1)]
        else:
            for k in range(self.harmonics):
                at, wave = 2 * k, 2 * math.pi * (k + 1) / self.period
                c[at] = 1.0
                if at + 1 == n:  # half the period: the wave is +1, -1, +1, ...
                    A[0, at, at] = -1.0
                else:
                    A[0, at : at + 2, at : at + 2] = _rotation(like.new_tensor(wave))
            moved = [p.get("variance")] * n
        return _diffuse(A, _variances(moved, like), c)


@dataclass(frozen=True, kw_only=True)
class Cycle(Component):
    """A wave whose period is learned: a rotation by 2 pi / period, damped by rho, with noise.

    periods:     the ends between which the period, in steps, is looked for
    damped:      rho is learned, inside (0, 1); else it is 1
    stochastic:  False for a wave that only decays, or stays
    Source:      Harvey 1989, sec. 2.3.3.
    """

    title = "cycle"
    periods: Periods
    damped: bool = True
    stochastic: bool = True

    @property
    def parameters(self) -> dict[str, Parameter]:
        found = {"variance": Parameter("variance")} if self.stochastic else {}
        found |= {"damping": Parameter("damping")} if self.damped else {}
        return found | {"period": Parameter("period", ends=self.periods)}

    @property
    def n_states(self) -> int:
        return 2

    def block(self, p: Parameters, like: Tensor) -> Block:
        rho = p.get("damping", like.new_ones(1))
        A = rho[:, None, None] * _rotation(2 * math.pi / p["period"])
        return _diffuse(A, _variances([p.get("variance")] * 2, like), like.new_tensor([1.0, 0.0]), 2 * rho.log())


@dataclass(frozen=True, kw_only=True)
class Autoregression(Component):
    """x_t = a_1 x_{t-1} + ... + a_p x_{t-p} + w_t, kept stationary; it begins in its stationary distribution."""

    title = "autoregression"
    order: Count = 1

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"variance": Parameter("variance"), "coefficients": Parameter("coefficients", self.order)}

    @property
    def n_states(self) -> int:
        return self.order

    def block(self, p: Parameters, like: Tensor) -> Block:
        n, a, variance = self.order, p["coefficients"], p["variance"]
        A = like.new_zeros(len(a), n, n)
        below = torch.eye(n, dtype=like.dtype, device=like.device)[: n - 1].expand(len(a), -1, -1)
        A = torch.cat([a[:, None], below], 1)
        c = like.new_zeros(n)
        c[0] = 1.0
        q = _variances([variance, *[None] * (n - 1)], like)
        P = variance[:, None, None] * _stationary_covariance(A)
        return Block(A, q, c, P, like.new_zeros(1))


@dataclass(frozen=True, kw_only=True)
class Regression(Component):
    """Covariates times coefficients, which are states: fixed, or (``stochastic``) each a walk with a common variance.

    The variance is that of the walk of what a covariate of size 1 adds.
    """

    title = "regression"
    d_covariates: Count
    stochastic: bool = False

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"variance": Parameter("variance")} if self.stochastic else {}

    @property
    def n_states(self) -> int:
        return self.d_covariates

    def block(self, p: Parameters, like: Tensor) -> Block:
        one = torch.eye(self.d_covariates, dtype=like.dtype, device=like.device)[None]
        return _diffuse(one, _variances([p.get("variance")] * self.d_covariates, like), None)

    def reads(self, like: Tensor) -> dict[str, Tensor]:
        return {"coefficients": torch.eye(self.d_covariates, dtype=like.dtype, device=like.device)}


@dataclass(frozen=True, kw_only=True)
class Irregular(Component):
    """Noise of each step by itself: what the other components leave. It has no state."""

    title = "irregular"

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"variance": Parameter("variance")}

    @property
    def n_states(self) -> int:
        return 0

    def block(self, p: Parameters, like: Tensor) -> Block:
        return _diffuse(like.new_zeros(1, 0, 0), like.new_zeros(1, 0), like.new_zeros(0))


AnyComponent = Level | Trend | Seasonal | Cycle | Autoregression | Regression | Irregular


def _rotation(angle: Tensor) -> Tensor:
    """[[cos, sin], [-sin, cos]], (..., 2, 2)."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)


def _stationary_covariance(A: Tensor) -> Tensor:
    """P = A P A^T + e_1 e_1^T for companion matrices A (batch, n, n), by one linear system each."""
    n = A.shape[-1]
    one = torch.eye(n * n, dtype=A.dtype, device=A.device)
    kron = (A[:, :, None, :, None] * A[:, None, :, None, :]).reshape(-1, n * n, n * n)
    e = A.new_zeros(n * n)
    e[0] = 1.0
    P = torch.linalg.solve(one - kron, e.expand(len(A), -1)).reshape(-1, n, n)
    return (P + P.mT) / 2
