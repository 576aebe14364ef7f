"""Paths drawn from a model: given observations, and of itself."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.call import Call, check_generator, check_room
from statewise.estimation.elements import given, onward
from statewise.estimation.factors import times
from statewise.estimation.gaussian import Posterior
from statewise.estimation.smoothing import deviations, later_information
from statewise.estimation.steps import choose, unbound
from statewise.operators.masks import mask_time


def sample_paths(call: Call, posterior: Posterior, n_samples: int, generator: torch.Generator | None) -> Tensor:
    """(n_samples, batch, length, n). Given all observations x is still a Markov chain, which is drawn from forwards.

    Cost:    a smoother's backward pass, then one product of matrices a step for all samples.
    Source:  Fruhwirth-Schnatter 1994, J. Time Series Anal. 15:183, and Carter & Kohn 1994, Biometrika 81:541, who draw
             from the end; from the beginning no covariance of a forecast has to be inverted.
    """
    if not isinstance(n_samples, Integral) or isinstance(n_samples, bool) or n_samples < 1:
        raise InputError(f"sample needs n_samples as a number of paths above 0, got {n_samples!r}")
    batch, length, n = posterior.mean.shape
    check_generator("sample", generator)
    check_room("sample", 2 * n_samples * batch * length * n, posterior.mean)
    element = deviations(call, posterior)
    starts = call.masks.starts
    if starts is not None:  # a document's first state, given its own first observation
        element = element._replace(U=choose(starts, posterior.factor.to(element.U), element.U))
    later = later_information(element, scanned=False)
    F, g, V = onward(element, later.of)
    first = given(call.begin.factor, later.initial)
    x = first.mean + times(first.factor, _normal(first.mean, (n_samples, batch, n), generator))
    noise = _normal(x, (n_samples, batch, length, n), generator)
    driven = g + times(V, noise)
    path = []
    for F_t, driven_t in zip(F.unbind(1), driven.unbind(2)):
        x = times(F_t, x) + driven_t
        path.append(x)
    paths = posterior.mean + torch.stack(path, 2) if path else driven
    return mask_time(paths.flatten(0, 1), _repeated(call.masks.valid, n_samples)).reshape(paths.shape).to(call.dtype)


def simulate(call: Call, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """x (batch, length, n) and y (batch, length, p) of a call whose own observations are ignored."""
    batch, length, p = call.y.shape
    steps, begin = call.steps, call.begin
    x = begin.mean + times(begin.factor, _normal(begin.mean, (batch, steps.n), generator))
    noise = times(steps.N, _normal(x, (batch, length, steps.n + p), generator)) + steps.offset
    both = []
    for G, now in zip(unbound(steps.G, length), noise.unbind(1)):
        both.append(times(G, x) + now)
        x = both[-1][:, p:]
    joined = torch.stack(both, 1) if both else noise
    return joined[..., p:].to(call.dtype), joined[..., :p].to(call.dtype)


def _normal(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def _repeated(valid: Tensor | None, n_samples: int) -> Tensor | None:
    return None if valid is None else valid.repeat(n_samples, 1)
