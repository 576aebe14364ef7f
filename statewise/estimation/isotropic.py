"""Kalman filters whose covariances are multiples of the identity: the state turns and decays, and is seen with noise.

x_t = a x_{t-1} + w_t, y_t = x_t + v_t with complex numbers x, of which both parts have the same variance:

    |a| = exp(log_decay) < 1,  w ~ (1 - |a|^2) N(0, 1),  v_t ~ N(0, 1 / precision_t)

in each part. Undisturbed, x has the variance 1, which is the prior. The covariance P_t after y_t then stays a multiple
of the identity, whatever the angle of a, and does not depend on y. Instead of P_t we keep the information that was
gained, i_t = 1/P_t - 1: it is 0 at rest, never below, and nothing cancels in its recurrence

    i_t = |a|^2 i_{t-1} / (1 + (1 - |a|^2) i_{t-1}) + precision_t               K_t = precision_t / (1 + i_t)
    m_t = a m_{t-1} + K_t (y_t - a m_{t-1})

A missing y_t has the precision 0. The first line is a map (α i + β) / (γ i + δ) whose numbers are all positive: maps of
several steps are products of 2 x 2 matrices. The last one is a linear recurrence, once the gains are known.

Source:  Kalman 1960, J. Basic Eng. 82:35; covariances that factorise inside a network, Becker et al. 2019 (RKN),
         arXiv:1905.07357; precisions as a scan of Moebius maps, Shaj et al. 2026 (KLA), arXiv:2602.10743. The prior as
         the origin of the information, and the isotropic heads, are ours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.linear_scan import linear_scan
from statewise.operators.folding import fold, is_any
from statewise.operators.masks import NO_MASKS, Masks


class Isotropic(NamedTuple):
    """mean: (batch, length, heads, n, d), complex: x_t given y up to t; information: (batch or 1, length, heads, n),
    real. The last step of each row's mean and information is its final state. begin: the mean before the first step;
    a: of each step, (batch or 1, length, heads, n).
    """

    mean: Tensor
    information: Tensor
    begin: Tensor
    a: Tensor

    @property
    def forecast(self) -> Tensor:
        """x_t given y up to t - 1, as ``mean``; of padding the mean as it is."""
        return self.a.unsqueeze(-1) * torch.cat([self.begin.unsqueeze(1), self.mean], 1)[:, :-1]


class Textbook(NamedTuple):
    """What the definition gives: as of :class:`Isotropic`."""

    mean: Tensor
    forecast: Tensor
    information: Tensor


def isotropic_reference(
    y: Tensor,
    precision: Tensor,
    log_decay: Tensor,
    frequency: Tensor,
    mean: Tensor,
    information: Tensor,
    masks: Masks = NO_MASKS,
) -> Textbook:
    """The textbook's filter with covariances, one step after the other. Arguments as :func:`isotropic_filter`.

    Source:  Kalman 1960; Särkkä 2013, Bayesian Filtering and Smoothing, eq. 4.20 and 4.21, with P a number.
    """
    a = torch.complex(log_decay, frequency).exp()
    q = 1 - (2 * log_decay).exp()
    batch, length = y.shape[:2]
    P = 1 / (1 + information.expand(batch, *information.shape[1:]))
    means, forecasts, gained = [], [], []
    for t in range(length):
        begins = torch.zeros(batch, dtype=torch.bool) if masks.starts is None else masks.starts[:, t]
        m, P = mean.masked_fill(begins[:, None, None, None], 0), torch.where(begins[:, None, None], 1, P)
        forecast, ahead = a.unsqueeze(-1) * m, a.abs() ** 2 * P + q
        seen = precision.expand(batch, length, *a.shape)[:, t]
        gain = ahead * seen / (ahead * seen + 1)  # P / (P + R) with R = 1 / precision, also for no precision at all
        after = forecast + gain.unsqueeze(-1) * (y[:, t].unsqueeze(2) - forecast)
        real = torch.ones_like(begins) if masks.valid is None else masks.valid[:, t]
        mean = torch.where(real[:, None, None, None], after, m)
        P = torch.where(real[:, None, None], (1 - gain) * ahead, P)
        means.append(mean)
        forecasts.append(torch.where(real[:, None, None, None], forecast, m))
        gained.append(1 / P - 1)
    return Textbook(*(torch.stack(parts, 1) for parts in (means, forecasts, gained)))


def isotropic_filter(
    y: Tensor,
    precision: Tensor,
    log_decay: Tensor,
    frequency: Tensor,
    mean: Tensor,
    information: Tensor,
    masks: Masks = NO_MASKS,
) -> Isotropic:
    """n filters for each head, which all see the head's d complex numbers y_t and share nothing else.

    Shapes:   y: (batch, length, heads, d), complex
              precision: (batch or 1, length or 1, heads, n), real, at least 0; 0 is a step without an observation
              log_decay, frequency: (heads, n), real: a = exp(log_decay + i frequency), log_decay below 0
              mean: (batch, heads, n, d), complex, and information: (batch or 1, heads, n), real, before the first step;
              zeros are the prior. With a batch of 1 in precision and information, and no masks, all rows share gains
              that are computed once.
    Cost:     the gains, about 2 sqrt(length) vectorised steps over heads n numbers of a row; the means, a
              :func:`~statewise.kernels.linear_scan.linear_scan` over heads n d complex ones, all of them in memory.
    Numerics: in the dtype of the arguments. Nothing is subtracted in the information, so that float32 keeps its digits
              for any precision; the gain is between 0 and 1, and |a (1 - gain)| <= |a|.
    Source:   the head of this file.
    """
    batch, length = y.shape[:2]
    keep, noise = (2 * log_decay).exp(), -torch.expm1(2 * log_decay)
    a = torch.complex(log_decay, frequency).exp()
    keep, noise, a = (m.expand(1, length, *m.shape) for m in (keep, noise, a))
    precision = precision.expand(precision.shape[0], length, *precision.shape[2:])
    if length == 0:
        return Isotropic(mean.new_zeros(batch, 0, *mean.shape[1:]), precision, mean, a)
    if masks.starts is not None:  # everything before is forgotten, also what is not a number
        first = masks.starts[:, 0]
        mean = mean.masked_fill(first[:, None, None, None], 0)
        information = information.masked_fill(first[:, None, None], 0)
        begins = masks.starts[:, :, None, None]
        keep, noise, a = keep.masked_fill(begins, 0), noise.masked_fill(begins, 0), a.masked_fill(begins, 0)
    if masks.valid is not None:  # padding changes nothing
        padding = ~masks.valid[:, :, None, None]
        precision = precision.masked_fill(padding, 0)
        keep, noise, a = keep.masked_fill(padding, 1), noise.masked_fill(padding, 0), a.masked_fill(padding, 1)
    if length == 1:  # a step of a stream
        i = information.unsqueeze(1)
        gained = keep * i / (1 + noise * i) + precision
    else:
        gained = information_scan(keep, noise, precision, information)
    gain = precision / (1 + gained)
    moved = (a * (1 - gain)).unsqueeze(-1)
    seen = gain.unsqueeze(-1) * y.unsqueeze(3)
    if length == 1:
        m = moved * mean.unsqueeze(1) + seen
    else:
        m = linear_scan(moved.expand_as(seen), seen, mean)
    return Isotropic(m, gained, mean, a)


def information_scan(keep: Tensor, noise: Tensor, precision: Tensor, information: Tensor) -> Tensor:
    """i_t = keep_t i_{t-1} / (1 + noise_t i_{t-1}) + precision_t, all of them at least 0.

    The values come from products of 2 x 2 matrices, without gradients. The tangent of each step at these values is a
    linear recurrence, i_t = slope_t i_{t-1} + offset_t, with the same values and the right first derivatives: a step of
    Newton's. A second step, with tangents at the values of the first, has the right ones up to the third. All
    numbers are positive, and no graph of the 2 x 2 products is kept.

    Shapes:  keep, noise, precision: (batch or 1, length, ...), broadcast; information: (batch or 1, ...)
             -> (batch or 1, length, ...)
    """
    keep, noise, precision = torch.broadcast_tensors(keep, noise, precision)
    rows = torch.broadcast_shapes(keep.shape[:1], information.shape[:1])
    keep, noise, precision = (m.expand(*rows, *m.shape[1:]) for m in (keep, noise, precision))
    information = information.expand(*rows, *information.shape[1:])
    with torch.no_grad():
        first = information.detach()
        values = _by_blocks(keep.detach(), noise.detach(), precision.detach(), first)
    if not torch.is_grad_enabled():
        return values
    for _ in range(2):
        before = torch.cat([information.unsqueeze(1), values[:, :-1]], 1)
        slope = keep / (1 + noise * before).square()
        values = linear_scan(slope, slope * noise * before.square() + precision, information)
    return values


def _by_blocks(keep: Tensor, noise: Tensor, precision: Tensor, information: Tensor) -> Tensor:
    """Blocks of about sqrt(length) steps at once, each as the map (α i + β) / (γ i + 1); then from block to block."""
    length = keep.shape[1]
    if is_any(length):
        return fold(_told, [information], [keep, noise, precision])[1][0]
    size = math.isqrt(length)
    main = length // size * size if size > 2 else 0
    found, now = [], information
    if main:
        k, n, p = (m[:, :main].unflatten(1, (-1, size)).unbind(2) for m in (keep, noise, precision))
        alpha, beta, gamma = torch.ones_like(k[0]), torch.zeros_like(k[0]), torch.zeros_like(k[0])
        maps = []
        for k_t, n_t, p_t in zip(k, n, p):
            mixed = k_t + p_t * n_t
            scale = 1 / (n_t * beta + 1)
            alpha, beta, gamma = (
                (mixed * alpha + p_t * gamma) * scale,
                (mixed * beta + p_t) * scale,
                (n_t * alpha + gamma) * scale,
            )
            maps.append((alpha, beta, gamma))
        begins = []
        for last in zip(*(m.unbind(1) for m in maps[-1])):
            begins.append(now)
            now = _mapped(last, now)
        begin = torch.stack(begins, 1)
        found.append(torch.stack([_mapped(m, begin) for m in maps], 2).flatten(1, 2))
    if main < length:
        found += fold(_told, [now], [m[:, main:] for m in (keep, noise, precision)])[1]
    return torch.cat(found, 1)


def _told(information: list[Tensor], step: list[Tensor], constants: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The information after a step."""
    keep, noise, precision = step
    after = keep * information[0] / (1 + noise * information[0]) + precision
    return [after], [after]


def _mapped(m: tuple[Tensor, ...], i: Tensor) -> Tensor:
    alpha, beta, gamma = m
    return (alpha * i + beta) / (gamma * i + 1)
