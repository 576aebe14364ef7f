"""What a system does to inputs of complex frequencies, and how far another one is from it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.systems.units import even_units, in_units

_ANGLES = (0.05, 0.9, 2.2)  # of the frequencies at which systems are looked at; one alone may meet a zero
_NEAR = 0.2  # from the unit circle: poles that are farther from it are seen from all of it
_LEAST_DISTANCE = 1e-6  # of a frequency from the unit circle, or the imaginary axis, near a pole on it
_MOST_BESIDE = 64  # resonances that are looked at, the least damped ones: each costs O(n^3)


class Parts(NamedTuple):
    """A (n, n), B (n, m) and C (p, n) of one system, in float64 or complex128."""

    A: Tensor
    B: Tensor
    C: Tensor

    def in_units(self, units: Tensor) -> Parts:
        """Each state divided by its unit."""
        return Parts(in_units(self.A, units), self.B / units.unsqueeze(-1), self.C * units)

    def in_even_units(self) -> Parts:
        return self.in_units(even_units(self.A))


def frequencies(A: Tensor, discrete: bool) -> list[Tensor]:
    """Complex frequencies z (k,), in groups at which responses are of one size.

    A continuous system has three each of the sizes below its slowest pole, above each pole that is well apart from the
    next, and above the fastest; also about the norm of A, where all poles are much smaller; and one beside each pole
    near the imaginary axis, about as far to the right of it as the pole is to the left. A discrete system has some of
    size 1, and outside the unit circle one near each pole, about as far from the circle as it is.
    """
    poles = torch.linalg.eigvals(A)
    norm = float(torch.linalg.matrix_norm(A, 2)) or 1.0
    if discrete:
        return [*_rings([1.0, 2 * max(1.0, float(poles.abs().amax()))], A), *_outside(poles)]
    sizes = poles.abs().sort().values
    sizes = sizes[sizes > len(A) * torch.finfo(sizes.dtype).eps * norm]  # slower ones are zero but for rounding
    rings = []
    if len(sizes):
        rings += [float(sizes[0]) / 2, 2 * float(sizes[-1])]
        pairs = zip(sizes[:-1].tolist(), sizes[1:].tolist())
        rings += [min(2 * slow, (slow * fast) ** 0.5) for slow, fast in pairs if fast > 1.5 * slow]
    if not len(sizes) or norm > 4 * float(sizes[-1]):
        rings += [2 * norm, norm / 2]
    return [*_rings(rings, A), *_beside(poles)]


def _rings(sizes: list[float], A: Tensor) -> list[Tensor]:
    angles = torch.tensor(_ANGLES, dtype=torch.float64, device=A.device)
    return [torch.polar(torch.full_like(angles, size), angles) for size in sizes]


def _outside(poles: Tensor) -> list[Tensor]:
    """A frequency near each pole that is near the unit circle, but for those that have one already."""
    found: list[Tensor] = []
    for pole in poles:
        size = float(pole.abs())
        off = max(1 - size, 2 * (size - 1), _LEAST_DISTANCE)
        z = torch.polar(pole.abs().new_full((1,), 1 + off), pole.angle().unsqueeze(0))
        if off < _NEAR and all(float((z - other).abs()) > off / 2 for other in found):
            found.append(z)
    return found


def _beside(poles: Tensor) -> list[Tensor]:
    """A frequency near each pole that is near the imaginary axis, and not slow, but for those that have one already."""
    found: list[Tensor] = []
    fast = poles[poles.imag.abs() > 1e-6 * poles.abs().amax()] if len(poles) else poles
    for pole in sorted(fast.tolist(), key=lambda pole: abs(pole.real) / abs(pole))[:_MOST_BESIDE]:
        off = max(-pole.real, 2 * pole.real, _LEAST_DISTANCE * abs(pole))
        z = poles.new_tensor([complex(off, pole.imag)])
        if off < _NEAR * abs(pole) and all(float((z - other).abs()) > off / 2 for other in found):
            found.append(z)
    return found


class Seen(NamedTuple):
    """What a system does at frequencies z.

    reached:  (angles, n, m), how far inputs move states
    shown:    (angles, p, n), how far states move outputs
    response: (angles, p, m)
    largest:  (angles, p, m), what the response would be if nothing cancelled
    """

    reached: Tensor
    shown: Tensor
    response: Tensor
    largest: Tensor


def responses(parts: Parts, z: Tensor) -> Seen:
    A, B, C = (x.to(torch.complex128) for x in parts)
    resolvent = z[:, None, None] * torch.eye(len(A), dtype=A.dtype, device=A.device) - A
    # solve() reads a B (len(z), n) of fewer axes than the matrices as a batch of vectors
    to_state = torch.linalg.solve(resolvent, B.expand(len(z), *B.shape))
    to_output = torch.linalg.solve(resolvent, C.expand(len(z), *C.shape), left=False)
    largest = torch.minimum(C.abs() @ to_state.abs(), to_output.abs() @ B.abs())
    return Seen(to_state, to_output, C @ to_state, largest)


class Reference(NamedTuple):
    """A system whose responses others are to have.

    seen: at each frequency z
    """

    seen: list[tuple[Tensor, Seen]]

    @classmethod
    def of(cls, parts: Parts, discrete: bool) -> Reference:
        """Give it in even units of the states: in others the norm of A says little of where its poles are."""
        return cls([(z, responses(parts, z)) for z in frequencies(parts.A, discrete)])

    def error(self, other: Parts) -> float:
        """The largest difference of two responses, as a share of their size at the frequencies of one group. What
        rounding does to ours is not counted; infinite for responses that are not finite.

        The size of the response from one input to one output is the geometric mean of two: the largest from that input
        to any output, and the largest from any input to that output. So the share does not depend on units, and is
        finite where the one response is zero.
        """
        worst = 0.0
        for z, seen in self.seen:
            rounding = 100 * seen.shown.shape[-1] * torch.finfo(torch.float64).eps * _sizes(seen.largest)
            off = (responses(other, z).response - seen.response).abs().amax(0)
            if not bool(off.isfinite().all()):
                return math.inf
            beyond = off > rounding
            if bool(beyond.any()):
                worst = max(worst, float(((off - rounding) / _sizes(seen.response))[beyond].amax()))
        return worst


def _sizes(response: Tensor) -> Tensor:
    """(angles, p, m) -> (p, m)"""
    size = response.abs().amax(0)
    return (size.amax(-1, keepdim=True) * size.amax(-2, keepdim=True)).sqrt()
