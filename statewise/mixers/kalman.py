"""Kalman filters as a layer: the input is an observation with noise, the output is what the filters make of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, EvenCount, Fraction, OneOf, PositiveRange
from statewise.errors import ConfigError, InputError
from statewise.estimation.isotropic import isotropic_filter
from statewise.kernels.batching import all_finite, whole
from statewise.kernels.pairs import as_complex
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.base import Dynamics, Mixer, MixerConfig
from statewise.mixers.output import OutputHalf
from statewise.mixers.prepared import wide
from statewise.mixers.projection import Linear
from statewise.mixers.time_invariant import Readout, least_decay
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast

PRECISION_AT_FIRST = 2.0  # what a sigmoid is of: at the beginning every observation has 0.88 of the most it can have


@dataclass(frozen=True, kw_only=True)
class KalmanConfig(MixerConfig):
    """A bank of learned Kalman filters.

    d_state:   filters of each head, each with its own decay, frequency and noise
    d_head:    numbers that a head observes, in pairs that rotate together; there are expand * d_model / d_head heads
    expand:    all heads together observe expand * d_model numbers
    dt_range:  dt of each head is drawn log-uniformly from it: its states last about 1 / dt steps
    precision_range: the precision of a whole observation, relative to the variance of the undisturbed state, is drawn
               log-uniformly from it, for each filter
    adaptive:  the input says, step by step, how much of its precision an observation has. False: always all of it
    output:    "mean": the filtered means; "innovation": how far each observation was from its forecast
    activation, dropout: see :class:`~statewise.mixers.output.OutputHalf`
    """

    d_state: Count = 4
    d_head: EvenCount = 8
    expand: Count = 2
    dt_range: PositiveRange = (1e-3, 1e-1)
    precision_range: PositiveRange = (0.1, 10.0)
    adaptive: bool = True
    output: Literal["mean", "innovation"] = "mean"
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"
    dropout: Fraction = 0.0

    def build(self, d_model: int) -> Kalman:
        return Kalman(d_model, self)


class KalmanState(NamedTuple):
    """mean: (batch, heads, d_state, d_head / 2, 2), of each pair; information: (batch, heads, d_state), at least 0: one
    over the variance, less one, the variance being 1 of a state that was never observed."""

    mean: Tensor
    information: Tensor


class KalmanDynamics(Dynamics):
    """a = exp((-exp(log_decay) + i frequency) exp(log_dt) rate), and precision = exp(log_precision).

    Shapes:  log_decay, frequency, log_precision: (heads, d_state)   log_dt: (heads, 1)
    """

    step_sizes: ClassVar[tuple[str, ...]] = ("log_dt",)

    def __init__(self, n_heads: int, config: KalmanConfig) -> None:
        super().__init__()
        self.config = config
        self.log_decay = nn.Parameter(torch.empty(n_heads, config.d_state))
        self.frequency = nn.Parameter(torch.empty(n_heads, config.d_state))
        self.log_precision = nn.Parameter(torch.empty(n_heads, config.d_state))
        self.log_dt = nn.Parameter(torch.empty(n_heads, 1))

    def reset_parameters(self) -> None:
        """S4D-Lin's -1/2 + iπn in each head: a level, and cycles."""
        A, _ = hippo.diagonal("lin", 2 * self.config.d_state)
        with torch.no_grad():
            self.log_decay.copy_(least_decay(A).log())
            self.frequency.copy_(A.imag)
        for parameter, (low, high) in (
            (self.log_dt, self.config.dt_range),
            (self.log_precision, self.config.precision_range),
        ):
            nn.init.uniform_(parameter, math.log(low), math.log(high))

    def forward(self, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """log abs(a), below 0, the angle of a, and the precision, (heads, d_state) each."""
        dt = wide(self.log_dt).exp().mul(rate)
        return -wide(self.log_decay).exp() * dt, wide(self.frequency) * dt, wide(self.log_precision).exp()


class Kalman(Mixer):
    """(v, g) = W x + b;  m_t = a m_{t-1} + K_t (v_t - a m_{t-1});  y = output(C m + D v).

    Each head has d_state filters, and each of them the model x_t = a x_{t-1} + w_t, v_t = x_t + noise for the complex
    numbers v_t of its head, d_head / 2: isotropic, with the variance 1 when nothing is known, and with the precision
    sigmoid(g_t) exp(log_precision) of what is observed. So K_t is one number for each filter and step; it falls as the
    filter becomes sure, and rises while nothing is seen. The gains depend on g and on what is missing, not on v.

    **Missing.** A step is without an observation, exactly, if x holds NaN there, or if the model says so in
    ``masks.observed``, as a forecaster does where its series has a gap. The filter then only forecasts.

    Published: filters with factorised covariances inside a network, whose observations come with a variance that the
    network says (RKN), and the scan that finds these variances (KLA). Ours: complex states of S4D-Lin, d_state filters
    of one observation, the prior, the bounded precision, and what surrounds the filter, which is S4D's.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`KalmanState`. ``in_proj.weight``: the rows of v,
             then those of g
    Cost:    d_model (d_inner + heads) and 2 d_inner d_model multiply-adds a step for the projections, and a scan over
             d_inner d_state / 2 complex numbers, with all of them in memory; d_inner = expand d_model.
    Errors:  ConfigError if d_head does not divide d_inner; InputError for shapes or states that do not fit.
    Source:  :mod:`statewise.estimation.isotropic`, where the equations and their sources stand.

    >>> mixer = KalmanConfig(d_state=3).build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.mean.shape, state.information.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 1, 3, 4, 2]), torch.Size([1, 1, 3]))
    """

    takes_missing = True
    exact_by_steps = True  # the filters of a call are combined in a tree over its steps

    def __init__(self, d_model: int, config: KalmanConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_inner = config.expand * d_model
        if self.d_inner % config.d_head:
            raise ConfigError(
                f"KalmanConfig.d_head={config.d_head} does not divide expand * d_model = {self.d_inner}; use an even "
                "divisor"
            )
        self.n_heads = self.d_inner // config.d_head
        self.rate = 1.0
        self.in_proj = Linear(d_model, self.d_inner + (self.n_heads if config.adaptive else 0))
        self.dynamics = KalmanDynamics(self.n_heads, config)
        self.readout = Readout(self.d_inner // 2, config.d_state, is_complex=True)
        self.output = OutputHalf(self.d_inner, d_model, activation=config.activation, dropout=config.dropout)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """C with variance 1 / d_state, since this many filters describe one signal; all others as usual."""
        self._refuse_if_frozen("cannot draw its parameters again")
        self.in_proj.reset_parameters()
        self.dynamics.reset_parameters()
        self.readout.reset_parameters()
        with torch.no_grad():
            self.in_proj.bias[self.d_inner :] = PRECISION_AT_FIRST
            self.readout.C.div_(math.sqrt(self.config.d_state))
        self.output.reset_parameters(residual_scale)

    def state_shape(self) -> KalmanState:
        heads, n = self.n_heads, self.config.d_state
        return KalmanState(leaf(heads, n, self.config.d_head // 2, 2), leaf(heads, n))

    def mix(self, x: Tensor, state: KalmanState | None, masks: Masks) -> tuple[Tensor, KalmanState | None]:
        missing = x.isnan().any(-1)
        v = self.in_proj(x.masked_fill(missing.unsqueeze(-1), 0))
        observed = ~missing if masks.observed is None else masks.observed & ~missing
        with without_autocast(x.device):
            y, state = self._filter(wide(v), observed, state, masks)
        return self.output(y.to(v.dtype)), state

    def _filter(
        self, v: Tensor, observed: Tensor, state: KalmanState | None, masks: Masks
    ) -> tuple[Tensor, KalmanState | None]:
        """What is read of the filters, (batch, length, d_inner), and the state behind it."""
        length = v.shape[1]
        seen, certainty = v[..., : self.d_inner], v[..., self.d_inner :]
        there = observed[:, :, None, None].to(v.dtype)
        log_decay, angle, precision = (m.to(v.dtype) for m in self.dynamics(self.rate))
        if self.config.adaptive:
            precision = there * torch.sigmoid(certainty).unsqueeze(-1) * precision
        elif not _is_whole(observed):
            precision = there * precision
        pairs = as_complex(seen.unflatten(-1, (self.n_heads, -1, 2)))
        mean, information = self._begin(state, pairs)
        if state is not None:
            _check_values(state, masks)
        precision = precision.expand(-1 if precision.ndim == 4 else 1, length, self.n_heads, -1)
        found = isotropic_filter(pairs, precision, log_decay, angle, mean, information, masks)
        C, D = as_complex(wide(self.readout.C)).to(pairs.dtype).squeeze(1), wide(self.readout.D).to(seen.dtype)
        C = C.unflatten(0, (self.n_heads, -1)).mT
        if self.config.output == "mean":
            told = found.mean
        else:
            told = there.unsqueeze(-1) * (pairs.unsqueeze(3) - found.forecast)
        y = (C * told).sum(3)
        y = y + there * D.reshape(self.n_heads, -1) * pairs
        y = torch.view_as_real(y).flatten(2)
        if state is None:
            return y, None
        if length == 0:
            return y, state
        mean = torch.view_as_real(found.mean[:, -1]).to(state.mean.dtype)
        information = found.information[:, -1].expand_as(state.information)
        return y, KalmanState(mean, information.to(state.information.dtype))

    def _begin(self, state: KalmanState | None, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and information before the first step, in the precision of the pairs; at rest one row of the latter
        speaks for all."""
        if state is None:
            heads, n, d = self.n_heads, self.config.d_state, self.config.d_head // 2
            return pairs.new_zeros(pairs.shape[0], heads, n, d), pairs.real.new_zeros(1, heads, n)
        return as_complex(state.mean).to(pairs.dtype), state.information.to(pairs.real.dtype)


def _check_values(state: KalmanState, masks: Masks) -> None:
    """Errors:  InputError for a state that no filter can be in, in rows that continue from it. It is not checked if
    that means waiting for a device or for compiled code."""
    mean, information = state
    if torch.compiler.is_compiling() or mean.device.type != "cpu" or not len(mean) or _is_possible(mean, information):
        return
    if masks.starts is not None and masks.starts.shape[1]:
        first = masks.starts[:, 0]
        mean = mean.masked_fill(first[:, None, None, None, None], 0)
        information = information.masked_fill(first[:, None, None], 0)
    if not _is_possible(mean, information):
        low, high = whole(information.detach()).aminmax()
        raise InputError(
            "Kalman needs a state whose mean is finite and whose information is at least 0 and finite; its "
            f"information is {float(low):.4g} to {float(high):.4g}; begin with initial_state(batch)"
        )


def _is_possible(mean: Tensor, information: Tensor) -> bool:
    return all_finite(mean) and all_finite(information) and whole(information.detach()).min().item() >= 0


def _is_whole(observed: Tensor) -> bool:
    """Whether nothing is missing. It costs a wait for the device; compiled code, which cannot wait, takes it as not."""
    return not torch.compiler.is_compiling() and not observed.is_meta and bool(whole(observed).all())
