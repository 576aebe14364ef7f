"""Online projection: the coefficients of a signal's past, at every time or at chosen times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo import scaled
from statewise.hippo.measures import check, transition, window
from statewise.systems import discretize_dense
from statewise.systems.rules import is_number


class HippoState(NamedTuple):
    """coefficients: (batch, *channels, n), float32 or wider; steps: (batch,) int64, how many inputs each row has
    had.
    """

    coefficients: Tensor
    steps: Tensor


def initial_state(
    batch: int,
    n: int,
    *,
    channels: tuple[int, ...] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> HippoState:
    """The state of rest for signals (batch, length, *channels); ``dtype`` is float32 unless a wider one is given."""
    dtype = torch.float32 if dtype is None else torch.promote_types(dtype, torch.float32)
    coefficients = torch.zeros(batch, *channels, n, device=device, dtype=dtype)
    return HippoState(coefficients, torch.zeros(batch, dtype=torch.int64, device=device))


def project(
    u: Tensor,
    measure: str,
    n: int,
    state: HippoState | None = None,
    *,
    at: Sequence[int] | Tensor | None = None,
    theta: float | None = None,
    dt: float = 1.0,
    alpha: float = 0.0,
    beta: float = 1.0,
    method: str = "zoh",
) -> tuple[Tensor, HippoState | None]:
    """The coefficients of a signal's past, step by step, in the basis of a measure.

    ``legs`` is solved with its 1/t and has no unit of time: it needs no theta, and dt does not change it. The other
    measures need ``theta``, their window or unit of time, in the unit of ``dt``, the time from one sample to the next.
    Input k is the signal from k dt to (k+1) dt. If it was sampled in the middle of each step, the coefficients are off
    by O(dt^2); if it was sampled at an end, by O(dt).

    ``state=None`` starts from rest and returns None; with a state, from :func:`initial_state` or an earlier call, you
    get the new one. ``at`` lists the steps (0 for the first of this call, negative from the end) after which you want
    coefficients: ``at=[-1]`` is the end only. Memory beyond the output and a copy of the input does not grow with the
    length.

    ``method`` is ``zoh``, exact for a signal that is constant within each step, ``bilinear``, ``euler`` (unstable for
    large n dt) or ``backward_euler``: see :func:`statewise.systems.discretize_dense`. For ``legs``, with k inputs read,
    ``euler`` is the published c_{k+1} = (I + A/k) c_k + B u_k/k, which multiplies the highest order by up to
    C(n-1, n/2) in its first steps (10^18 for n = 64), and ``backward_euler`` c_{k+1} = (I - A/(k+1))^-1 (c_k + B
    u_k/(k+1)), which does not. The first input becomes the first coefficient, which is exact; then both are off by
    O(1/k).

    Shapes:  u: (batch, length, *channels), real   ->   (batch, length or len(at), *channels, n), HippoState or None
    Cost:    for each channel and step O(n^2), but O(n) for legs by a rule other than zoh, or with few times in ``at``
    Numerics: computed in the wider of u's and the state's dtype and float32, from matrices in float64. Bounded for n to
             256 and any length, but by ``euler``.
    Errors:  InputError for shapes, dtypes, times or options that do not fit.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, sec. 2 and 3.

    >>> coefficients, _ = project(torch.ones(1, 3), "legs", 2)
    >>> coefficients
    tensor([[[1., 0.],
             [1., 0.],
             [1., 0.]]])
    """
    check(measure, n, alpha=alpha, beta=beta)
    _check_options(measure, theta=theta, dt=dt, method=method)
    begin = _checked_state(state, u, n)
    wanted, order = _wanted(at, u.shape[1])
    signals = u.to(begin.coefficients.dtype).movedim(1, -1)  # (batch, *channels, length)
    if not begin.coefficients.numel():  # no signals
        outputs, last = signals.new_empty(*signals.shape[:-1], len(wanted), n), begin.coefficients
    elif measure == "legs":
        outputs, last = _by_age(begin, signals, wanted, method)
    else:
        system = (measure, n, window(measure, theta=theta), float(alpha), float(beta), float(dt), method)
        outputs, last = _time_invariant(system, begin.coefficients.flatten(0, -2), signals.flatten(0, -2), wanted)
    outputs = outputs.reshape(*signals.shape[:-1], len(wanted), n).movedim(-2, 1)
    outputs = outputs if order is None else outputs[:, order.to(u.device)]
    last = last.reshape(begin.coefficients.shape)
    return outputs, None if state is None else HippoState(last, begin.steps + u.shape[1])


class _Output:
    """The coefficients of one block of time after the other, without a second copy where no gradient is needed."""

    def __init__(self, coefficients: Tensor, u: Tensor, count: int) -> None:
        self.parts: list[Tensor] = []
        self.filled = 0
        self.tensor = None
        if not (torch.is_grad_enabled() and (coefficients.requires_grad or u.requires_grad)):
            self.tensor = u.new_empty(u.shape[0], count, coefficients.shape[-1])

    def add(self, values: Tensor) -> None:
        if self.tensor is None:
            self.parts.append(values)
        else:
            self.tensor[:, self.filled : self.filled + values.shape[1]] = values
            self.filled += values.shape[1]

    def all(self) -> Tensor:
        return torch.cat(self.parts, dim=1) if self.tensor is None else self.tensor


def _by_age(begin: HippoState, signals: Tensor, wanted: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """LegS, whose matrices depend on the step: rows that have made equally many steps together."""
    ages, group = begin.steps.unique(return_inverse=True)
    outputs, ends, rows = [], [], []
    for index, steps in enumerate(ages.tolist()):
        row = (group == index).nonzero()[:, 0]
        flat = begin.coefficients[row].flatten(0, -2), signals[row].flatten(0, -2)
        values, end = _scaled(*flat, steps, wanted, method)
        outputs.append(values.unflatten(0, (len(row), -1)))
        ends.append(end.unflatten(0, (len(row), -1)))
        rows.append(row)
    if len(rows) == 1:
        return outputs[0], ends[0]
    back = torch.cat(rows).argsort()
    return torch.cat(outputs)[back], torch.cat(ends)[back]


def _scaled(coefficients: Tensor, u: Tensor, steps: int, wanted: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """LegS after the wanted steps, and at the end. coefficients: (signals, n), u: (signals, length)."""
    length = u.shape[1]
    # A block of k steps costs n (n + k) for each wanted time in it: short blocks where all are wanted, else long ones.
    size = 1024 if method != "zoh" or 8 * len(wanted) < length else 64
    output = _Output(coefficients, u, len(wanted))
    for start in range(0, length, size):
        block = u[:, start : start + size]
        counts = wanted[(wanted >= start) & (wanted < start + size)] - start + 1
        if method != "zoh":
            values = scaled.rule(coefficients, block, steps + start, scaled.LATE[method])
            output.add(values[:, (counts - 1).to(u.device)])
            coefficients = values[:, -1]
        else:
            end = torch.tensor([block.shape[1]])
            values = scaled.hold(coefficients, block, steps + start, torch.cat([counts, end]))
            output.add(values[:, :-1])
            coefficients = values[:, -1]
    return output.all(), coefficients


def _time_invariant(
    system: tuple[str, int, float, float, float, float, str], coefficients: Tensor, u: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """x_k = A x_{k-1} + B u_k, a block of steps at a time: powers of A for the state, their Toeplitz for the inputs."""
    n, length = coefficients.shape[1], u.shape[1]
    size = _block(n, length)
    powers, responses = (table.to(u) for table in _tables(*system, size))
    output = _Output(coefficients, u, len(wanted))
    for start in range(0, length, size):
        block = u[:, start : start + size]
        k = block.shape[1]
        counts = wanted[(wanted >= start) & (wanted < start + size)] - start
        rows = torch.cat([counts, torch.tensor([k - 1])]).to(u.device)
        values = torch.einsum("mij,sj->smi", powers[rows], coefficients)
        values = values + torch.einsum("kmi,sk->smi", responses[:k, rows], block)
        output.add(values[:, :-1])
        coefficients = values[:, -1]
    return output.all(), coefficients


def _block(n: int, length: int) -> int:
    """A power of two, between 8 and 256, whose tables hold at most half a million numbers; not beyond the length."""
    size = 256
    while size > 8 and size * n * (size + n) > 2**19:
        size //= 2
    return min(size, 1 << max(0, length - 1).bit_length())


@lru_cache(maxsize=8)
def _tables(
    measure: str, n: int, theta: float, alpha: float, beta: float, dt: float, method: str, size: int
) -> tuple[Tensor, Tensor]:
    """A^1 to A^size, (size, n, n), and A^(m-k) B where m >= k, (size k, size m, n)."""
    A, B = transition(measure, n, theta=theta, alpha=alpha, beta=beta)
    A, B = discretize_dense(A, B, torch.tensor(dt, dtype=torch.float64), method)
    powers = A[None]
    while len(powers) < size:
        powers = torch.cat([powers, powers @ powers[-1]])
    response = torch.cat([B[None], powers[:-1] @ B])
    lag = torch.arange(size) - torch.arange(size)[:, None]
    return powers, torch.where((lag >= 0)[..., None], response[lag.clamp(min=0)], 0.0)


def _wanted(at: Sequence[int] | Tensor | None, length: int) -> tuple[Tensor, Tensor | None]:
    """The wanted steps, ascending and each once, and where each entry of ``at`` is found among them."""
    if at is None:
        return torch.arange(length), None
    steps = torch.as_tensor(at).cpu()
    if steps.numel() == 0:
        steps = steps.long()
    if steps.ndim != 1 or steps.dtype not in (torch.int64, torch.int32):
        raise InputError(f"at is a list of step numbers; got {steps.dtype} of shape {tuple(steps.shape)}")
    outside = (steps < -length) | (steps >= length)
    if outside.any():
        raise InputError(f"at has step {int(steps[outside][0])}, and the signal has {length} steps")
    return torch.where(steps < 0, steps + length, steps).long().unique(return_inverse=True)


def _check_options(measure: str, *, theta: float | None, dt: float, method: str) -> None:
    if measure == "legs":
        if theta is not None:
            raise InputError(f"legs remembers all of the past and has no window: leave theta={theta} out")
    elif theta is None:
        raise InputError(f"{measure} needs theta, its window or unit of time, in the unit of dt")
    else:
        window(measure, theta=theta)
    methods = ("zoh", *scaled.LATE)
    if method not in methods:
        raise InputError(f"{measure} can be projected by {', '.join(methods)}; got {method!r}")
    if not (is_number(dt) and dt > 0 and math.isfinite(dt)):
        raise InputError(f"dt is the time from one sample to the next, above zero; got {dt!r}")


def _checked_state(state: HippoState | None, u: Tensor, n: int) -> HippoState:
    """The state to begin with, in the dtype to compute in."""
    if u.ndim < 2 or not u.is_floating_point():
        raise InputError(f"a signal is real and (batch, length, *channels); got {u.dtype} {tuple(u.shape)}")
    if state is None:
        return initial_state(u.shape[0], n, channels=tuple(u.shape[2:]), device=u.device, dtype=u.dtype)
    shape = (u.shape[0], *u.shape[2:], n)
    if tuple(state.coefficients.shape) != shape or tuple(state.steps.shape) != shape[:1]:
        raise InputError(
            f"this signal and n={n} need a state of coefficients {shape} and steps {shape[:1]}; "
            f"got {tuple(state.coefficients.shape)} and {tuple(state.steps.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(u.dtype, state.coefficients.dtype), torch.float32)
    return HippoState(state.coefficients.to(dtype), state.steps)
