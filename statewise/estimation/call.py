"""One call of a model: its arguments checked, and what all forms and smoothers need worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from statewise.errors import ConfigError, InputError, retold
from statewise.estimation.coefficients import FLOATS, check_axes, with_axes
from statewise.estimation.factors import factor, positive, times, values
from statewise.estimation.gaussian import GaussianState, Posterior, Steady
from statewise.estimation.square_root import square_root
from statewise.estimation.steps import Filtered, Steps, log_densities
from statewise.kernels.batching import all_finite
from statewise.memory import require_free
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import check_state
from statewise.precision import full_precision, rounds_products, without_autocast


@dataclass(frozen=True, eq=False)
class Call:
    """Observations y (batch, length, p), zero where missing, with ``observed`` (batch, length, p) or None where all is;
    ``begin``, x before the first step, with a batch of 1 where no state was given and all rows have one prior."""

    model: Any  # a LinearGaussian, or for a part of this a NonlinearGaussian
    y: Tensor
    u: Tensor | None
    observed: Tensor | None
    masks: Masks
    begin: GaussianState
    prior: GaussianState
    fresh: Tensor | None  # (batch,) bool, the rows that begin with a document, whatever the state
    returns_state: bool
    dtype: torch.dtype  # of results
    work_dtype: torch.dtype  # in which they are computed

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """c = B u + b (batch or 1, length or 1, n) and d' = D u + d (..., p)."""
        model = self.model
        return self._offset(model.B, model.b, model.n_states), self._offset(model.D, model.d, model.n_observations)

    def _offset(self, gain: Tensor | None, constant: Tensor | None, size: int) -> Tensor:
        total = self.y.new_zeros(1, 1, size)
        if constant is not None:
            total = total + with_axes(constant, 1).to(total.dtype)
        if gain is not None and self.u is not None:
            total = total + times(with_axes(gain, 2).to(total.dtype), self.u)
        return total

    @cached_property
    def steps(self) -> Steps:
        model, dtype = self.model, self.work_dtype
        A, C = (with_axes(m, 2).to(dtype) for m in (model.A, model.C))
        n, p = model.n_states, model.n_observations
        if model.S is None:
            L_Q, L_R, X = factor(with_axes(model.Q, 2).double()), factor(with_axes(model.R, 2).double()), None
        else:
            joint = factor(with_axes(model._joint(), 2).double())
            L_Q, L_R, X = joint[..., :n, :n], joint[..., n:, n:], joint[..., n:, :n]
        L_Q, L_R = L_Q.to(dtype), L_R.to(dtype)
        CL = C @ L_Q if X is None else C @ L_Q + X.to(dtype)
        lead = torch.broadcast_shapes(CL.shape[:2], L_R.shape[:2], L_Q.shape[:2])
        top = torch.cat([CL.expand(*lead, p, n), L_R.expand(*lead, p, p)], -1)
        below = torch.cat([L_Q, L_Q.new_zeros(*L_Q.shape[:2], n, p)], -1).expand(*lead, n, n + p)
        CA = C @ A
        G = torch.cat([CA, A.expand(*CA.shape[:2], n, n)], -2)
        c, d = self.offsets
        seen = times(C, c) + d
        offset = torch.cat([seen, c.expand(*seen.shape[:2], n)], -1)
        return Steps(G, torch.cat([top, below], -2), offset, self.y, self.observed, self.prior, self.masks)

    @property
    def n_observed(self) -> Tensor:
        """(batch, length): how many numbers of a step were observed."""
        batch, length, p = self.y.shape
        if self.observed is None:
            return torch.tensor(p, device=self.y.device).expand(batch, length)
        return self.observed.sum(-1)

    def filtered(self, form: Callable[[Steps, GaussianState], Any]) -> tuple[Filtered, Steady | None]:
        """Run a form. All results get their whole batch; factors that all rows share are expanded, not copied."""
        if not self.y.shape[1]:
            form = square_root
        with without_autocast(self.y.device):
            result = form(self.steps, self.begin)
        filtered, told = result if isinstance(result[0], Filtered) else (result, None)
        batch = len(self.y)
        mean, L, innovation, S = (m.expand(batch, *m.shape[1:]) for m in filtered[:4])
        final = GaussianState(*[m.expand(batch, *m.shape[1:]) for m in filtered.final])
        return Filtered(mean, L, innovation, S, positive_state(final), filtered.log_densities), told

    def posterior(self, filtered: Filtered, told: Steady | None = None) -> Posterior:
        mean, L, innovation, innovation_factor, _, densities = filtered
        if densities is None:
            densities = log_densities(innovation, innovation_factor, self.n_observed)
        results = (mean, L, densities, innovation, innovation_factor)
        mean, L, densities, innovation, innovation_factor = (m.to(self.dtype) for m in results)
        mean, L = mask_time(mean, self.masks.valid), mask_time(L, self.masks.valid)
        return Posterior(mean, L, densities, innovation, innovation_factor, self.n_observed, told)

    def final(self, state: GaussianState) -> GaussianState | None:
        return GaussianState(*[m.to(self.dtype) for m in state]) if self.returns_state else None


def positive_state(state: GaussianState) -> GaussianState:
    """With Cholesky's factor where it is triangular; any other square root as it is."""
    return state._replace(factor=positive(state.factor)) if is_triangular(state.factor) else state


def is_triangular(L: Tensor) -> bool:
    return not bool(values(L).triu(1).any())


def check_call(model: Any, y: Any, state: Any) -> None:
    """Errors:  InputError unless y (batch, length, p) is real and floating, and the state one of the model's for it."""
    name, p = type(model).__name__, model.n_observations
    if not isinstance(y, Tensor):
        raise InputError(f"{name} needs y as a tensor, got {type(y).__name__}; use torch.as_tensor(y)")
    like = model._like()
    if y.device != like.device or y.layout != torch.strided:
        raise InputError(f"{name} needs y on {like.device}, where its coefficients are; got {y.device}, {y.layout}")
    if y.dtype not in FLOATS:
        raise InputError(f"{name} needs y in float32 or float64, got {y.dtype} {tuple(y.shape)}; use y.double()")
    if y.ndim != 3 or y.shape[-1] != p:
        raise InputError(
            f"{name} needs y (batch, length, {p}), got {tuple(y.shape)}; the last axis holds the observations of a "
            "step, and each series is a row: for one of shape (length,) use y[None, :, None]"
        )
    if state is not None:
        check_state(name, state, model.state_shape(), len(y), y.device)


def check_length(caller: str, length: Any) -> None:
    if not isinstance(length, Integral) or isinstance(length, bool) or length < 0:
        raise InputError(f"{caller} needs length as a number of steps, an integer of at least 0; got {length!r}")


def check_generator(caller: str, generator: Any) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(
            f"{caller} needs generator as a torch.Generator, got {type(generator).__name__}; use "
            "torch.Generator().manual_seed(0)"
        )


def check_room(caller: str, n_numbers: int, like: Tensor) -> None:
    """Errors:  InputError where so many numbers, results alone, are more than the memory that is free."""
    if like.device.type == "cpu":
        with retold(InputError, ConfigError):
            require_free(n_numbers * torch.promote_types(like.dtype, torch.float32).itemsize, caller)


def check_forecast(caller: str, state: Any, length: Any) -> None:
    """Errors:  InputError unless there is a state to forecast from; whether it fits is for the call."""
    if not isinstance(state, GaussianState) or not isinstance(state.mean, Tensor) or not state.mean.ndim:
        raise InputError(
            f"{caller} needs the state that filter returned, got {type(state).__name__}; filter begins from "
            "initial_state(batch)"
        )
    check_length(caller, length)


def prior_state(mean: Tensor, covariance: Tensor, dtype: torch.dtype) -> GaussianState:
    """x_0 with an axis for the batch, 1 where all rows share it."""
    mean, L = mean.to(dtype), factor(covariance.double()).to(dtype)
    return GaussianState(mean if mean.ndim == 2 else mean[None], L if L.ndim == 3 else L[None])


def check_observed(name: str, y: Tensor, observed: Any) -> None:
    fits = observed is None or (isinstance(observed, Tensor) and observed.dtype == torch.bool)
    if not fits or (observed is not None and (observed.shape != y.shape or observed.device != y.device)):
        given = f"{observed.dtype} {tuple(observed.shape)}" if isinstance(observed, Tensor) else type(observed).__name__
        raise InputError(
            f"{name} needs observed as bool in the shape of y, {tuple(y.shape)}, True where seen; got {given}"
        )


def check_inputs(name: str, y: Tensor, u: Any, n_inputs: int | None) -> None:
    wanted: tuple = (*y.shape[:2], n_inputs)
    if u is None and not n_inputs:
        return
    if n_inputs is None and isinstance(u, Tensor) and u.ndim == 3:
        wanted = (*y.shape[:2], u.shape[2])
    elif not n_inputs:
        raise InputError(f"{name} has neither B nor D, so it takes no u")
    given = f"{u.dtype} {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
    if not isinstance(u, Tensor) or u.dtype not in FLOATS or u.shape != wanted or u.device != y.device:
        raise InputError(f"{name} needs u of shape {wanted} in float32 or float64 on {y.device}; got {given}")


def seen(name: str, y: Tensor, observed: Tensor | None, masks: Masks) -> tuple[Tensor, Tensor | None]:
    """y with zeros where nothing was observed, and where that was not; None if it was everywhere."""
    kept = ~y.isnan()
    if observed is not None:
        kept = kept & observed
    if masks.valid is not None:
        kept = kept & masks.valid.unsqueeze(-1)
    y = y.masked_fill(~kept, 0)
    if bool(values(y.isinf()).any()):
        raise InputError(f"{name}: y holds infinity; mark a missing number by NaN, or by False in observed")
    return y, None if bool(values(kept).all()) else kept


def is_finite(*given: Tensor) -> bool:
    return all(all_finite(values(m)) for m in given)


def open_call(model: Any, y: Any, state: Any, u: Any, observed: Any, lengths: Any, starts: Any) -> Call:
    name = type(model).__name__
    check_call(model, y, state)
    check_observed(name, y, observed)
    check_inputs(name, y, u, model.n_inputs)
    batch = len(y)
    check_axes(name, model._varying(), *y.shape[:2])
    for key, own in (("mean", 1), ("covariance", 2)):
        value = getattr(model, key)
        if value.ndim > own and value.shape[0] not in (1, batch):
            raise InputError(f"{name}: {key} is {tuple(value.shape)}, for {value.shape[0]} rows; y has {batch}")
    masks = build_masks(y, lengths, starts)
    y, kept = seen(name, y, observed, masks)
    dtype = full_precision(y.dtype, model._like().dtype)
    # a filter does not bear products of float32 that the process lets be rounded; but a function has its own dtype
    work = torch.float64 if rounds_products() and model.n_inputs is not None else dtype
    prior = model._prior(work)
    begin = prior if state is None else GaussianState(*[m.to(work) for m in state])
    fresh = None
    if masks.starts is not None and y.shape[1]:
        fresh = first = masks.starts[:, 0]
        begin = GaussianState(
            torch.where(first[:, None], prior.mean, begin.mean),
            torch.where(first[:, None, None], prior.factor, begin.factor),
        )
        later = masks.starts.clone()
        later[:, 0] = False
        masks = masks._replace(starts=later)
    if state is not None and not is_finite(*begin):
        raise InputError(f"{name}: the state holds NaN or infinity; begin with initial_state(batch)")
    if u is not None:
        u = mask_time(u, masks.valid).to(work)
        if not is_finite(u):
            raise InputError(f"{name}: u holds NaN or infinity; only y may have gaps: fill those of u")
    return Call(model, y.to(work), u, kept, masks, begin, prior, fresh, state is not None, dtype, work)
