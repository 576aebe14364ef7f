"""The time-invariant systems inside operators and mixers: their poles and how they answer to impulses and oscillations.

Mamba's systems change with every step. Their poles in continuous time do not, and are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.mixers.gss import GSS
from statewise.mixers.h3 import H3
from statewise.mixers.lssl import LSSL
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.prepared import PreparableMixer, wide
from statewise.mixers.s4d import S4D
from statewise.mixers.s5 import S5
from statewise.operators.base import Operator
from statewise.operators.causal_convolution import CausalConvolution
from statewise.operators.dense import DenseLTI
from statewise.operators.diagonal import DiagonalLTI
from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank
from statewise.operators.diagonal_mimo import DiagonalMIMO
from statewise.systems import ContinuousSystem, DiscreteSystem
from statewise.systems.base import System

TIME_INVARIANT = (DiagonalLTI, DenseLTI, DiagonalPlusLowRank, DiagonalMIMO, CausalConvolution)
Systems = System | Operator | Mixer


@dataclass(frozen=True, kw_only=True, eq=False)
class Poles:
    """The poles of a batch of systems, both of each conjugate pair, complex.

    Shapes:  discrete, continuous: (channels, n), or None where there are none of that kind or they are not known
             dt: (channels,) or (channels, n), the step between them; None where it is not known
    """

    name: str
    discrete: Tensor | None
    continuous: Tensor | None
    dt: Tensor | None


@torch.no_grad()
def systems_of(of: Systems) -> dict[str, System | Operator]:
    """The time-invariant systems of a mixer by name, such as H3's two; a system or an operator is its own.

    Errors:  InputError for a mixer without any, or with one that changes from step to step.
    """
    if isinstance(of, (System, *TIME_INVARIANT)):
        return {"": of}
    if isinstance(of, PreparableMixer):
        operators = list(of.operators)
        if not all(isinstance(operator, TIME_INVARIANT) for operator in operators):
            raise InputError(f"{type(of).__name__} has a system that changes with time, which has no one response")
        if isinstance(of, H3):
            names = ["shift SSM", "diagonal SSM"]
        else:
            names = ["forward", "backward"] if len(operators) == 2 else [""]
        return dict(zip(names, operators, strict=True))
    kind = type(of).__name__
    if isinstance(of, Operator) or kind in ("Mamba", "Mamba2", "Mamba3"):
        raise InputError(
            f"the coefficients of {kind} change with every step, so it has no one response; hidden attention shows it "
            "(poles has those of Mamba and Mamba2 in continuous time)"
        )
    raise InputError(
        f"{kind} has no poles and no impulse response: it is not made of time-invariant systems; give S4, H3 or such"
    )


@torch.no_grad()
def discrete_system(of: System | Operator, channels: Sequence[int] | None = None) -> DiscreteSystem:
    """An operator as the discrete system that it is, with both of each conjugate pair: a batch over its channels.

    channels: which of them; None: all. Systems and operators that mix their channels are whole
    Errors:  InputError for a filter, which has no state to write down, and what is continuous or changes with time.
    """
    if isinstance(of, DiscreteSystem):
        return of
    if isinstance(of, DiagonalPlusLowRank):
        of = of.dense()
    if isinstance(of, DenseLTI):
        index = _channels(len(of.A), channels)
        return DiscreteSystem(of.A[index], of.B[index], of.C[index])
    if isinstance(of, DiagonalLTI):
        index = _channels(len(of.A), channels)
        A, B, C = (_pairs(m[index]) for m in (of.A, of.B, of.C))
        D = None if of.D is None else of.D[index].to(A.dtype)
        return DiscreteSystem(A, B, C, D, diagonal=True)
    if isinstance(of, DiagonalMIMO):
        A, C = _pairs(of.A), _pairs(of.C)
        B = of.B if not of.B.is_complex() else torch.cat([of.B, of.B.conj()])
        D = of.D if of.D is None or of.D.ndim == 2 else torch.diag(of.D)
        return DiscreteSystem(A, B, C, None if D is None else D.to(A.dtype), diagonal=True)
    raise InputError(f"{type(of).__name__} is not a discrete system with a state; discretise it, or give S4's or such")


def _pairs(m: Tensor) -> Tensor:
    return torch.cat([m, m.conj()], -1) if m.is_complex() else m


def _channels(width: int, channels: Sequence[int] | None) -> Tensor:
    chosen = range(width) if channels is None else channels
    for channel in chosen:
        if isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel < width:
            raise InputError(f"channels has {channel!r}; this system has channels 0 to {width - 1}")
    return torch.tensor(list(chosen), dtype=torch.int64)


@torch.no_grad()
def impulse_response(of: System | Operator, length: int, channels: Sequence[int] | None = None) -> Tensor:
    """The outputs after an input of 1 at the first step and 0 behind it.

    Shapes:  -> (channels, length), with an axis of outputs before the last if each channel has several; for
             DiagonalMIMO (outputs, inputs, length), for a system (..., length)
    Errors:  InputError for what is continuous (its own method takes times) or changes with time.

    >>> impulse_response(CausalConvolution(torch.tensor([[3.0, 2.0]])), 4)
    tensor([[3., 2., 0., 0.]])
    """
    if isinstance(of, CausalConvolution):
        taps = of.taps[_channels(len(of.taps), channels)][:, :length]
        return F.pad(taps, (0, length - taps.shape[1]))
    if isinstance(of, (DiagonalLTI, DenseLTI, DiagonalPlusLowRank)):
        return of.impulse_response(length)[_channels(of.channels[0], channels)]
    return _real(discrete_system(of).impulse_response(length))


@torch.no_grad()
def frequency_response(of: System | Operator, omega: Tensor, channels: Sequence[int] | None = None) -> Tensor:
    """What becomes of e^(i omega t): multiplied by this complex number, once all that came before has died away.

    Shapes:  omega: (f,), radians a step, for a system radians per unit of its time   ->   as
             :func:`impulse_response`, with f for length, complex
    Errors:  as :func:`impulse_response`; InputError where omega is a pole.

    >>> frequency_response(CausalConvolution(torch.tensor([[0.5, 0.5]])), torch.tensor([0.0, torch.pi])).abs().round()
    tensor([[1., 0.]])
    """
    if isinstance(of, CausalConvolution):
        taps = of.taps[_channels(len(of.taps), channels)]
        steps = torch.arange(taps.shape[1], dtype=omega.dtype, device=omega.device)
        waves = torch.polar(torch.ones_like(omega)[:, None], -omega[:, None] * steps)
        response = taps.to(waves.dtype) @ waves.mT
        return response
    if isinstance(of, ContinuousSystem):
        return of.frequency_response(omega)
    return discrete_system(of, channels).frequency_response(omega)


def _real(response: Tensor) -> Tensor:
    """The imaginary parts of conjugate pairs cancel; those of a system that is complex itself do not."""
    if not response.is_complex():
        return response
    small = response.imag.abs().amax() <= 1e-4 * response.abs().amax()
    return response.real if bool(small) else response


@torch.no_grad()
def poles(of: Systems) -> list[Poles]:
    """The poles of each system of an operator, a mixer or a system, one entry for each.

    A pole at s in continuous time is e^(s dt) in discrete time with zero-order hold, and (1 + s dt/2) / (1 - s dt/2)
    with the bilinear rule. Systems are stable inside the unit circle, and left of the imaginary axis. A filter of
    finite length, such as H3's shift SSM, has none but 0 and is left out. Mamba's and Mamba-2's discrete poles are
    those at the step size of an input of zero, softplus(dt_bias): an input moves them along their curves.

    Errors:  InputError for another mixer, such as attention.
    """
    if isinstance(of, (Mamba, Mamba2)):
        return [_selective(of)]
    found = []
    for name, system in systems_of(of).items():
        if isinstance(system, CausalConvolution):
            continue
        if isinstance(system, ContinuousSystem):
            found.append(Poles(name=name, discrete=None, continuous=_rows(system.poles()), dt=None))
            continue
        continuous, dt = _continuous(of, system)
        if isinstance(system, DiagonalPlusLowRank) and continuous is not None and dt is not None:
            half = continuous * dt[:, None] / 2
            discrete = (1 + half) / (1 - half)
        else:
            discrete = _rows(discrete_system(system).poles())
        found.append(Poles(name=name, discrete=discrete, continuous=continuous, dt=dt))
    if not found:
        raise InputError("a filter of finite length has no poles but 0; draw its impulse or frequency response")
    return found


def _rows(poles: Tensor) -> Tensor:
    """(channels, n)"""
    return poles.reshape(-1, poles.shape[-1])


def _continuous(of: Any, system: Any) -> tuple[Tensor | None, Tensor | None]:
    """The poles in continuous time and dt, where they are known."""
    if isinstance(system, DiagonalPlusLowRank):
        return _low_rank(system), system.dt.double()
    if isinstance(of, S4D):
        return _pairs(of.dynamics.continuous()[0]), of.dynamics.dt(of.rate or 1.0)
    if isinstance(of, H3):
        diagonal = of.dynamics.diagonal
        return _pairs(diagonal.continuous()[0]), diagonal.dt(1.0)
    if isinstance(of, S5):
        A, dt = of.dynamics.continuous(of.rate or 1.0)
        return _pairs(A)[None], torch.cat([dt, dt])[None]
    if isinstance(of, GSS):
        A = of.dynamics.continuous()
        return _pairs(A), A.real.new_full((len(A),), of.rate or 1.0)
    if isinstance(of, LSSL):
        dt = of.dynamics.dt(of.rate or 1.0)
        return torch.linalg.eigvals(of.dynamics.A.double()).expand(len(dt), -1), dt
    if isinstance(system, DiscreteSystem) and isinstance(system.dt, Tensor):
        return None, system.dt.reshape(-1)
    return None, None


def _low_rank(system: DiagonalPlusLowRank) -> Tensor:
    """Eigenvalues of Lambda - P Q* over both of each conjugate pair, in float64: those of HiPPO's matrices change with
    the last digits.
    """
    Q = system.P if system.Q is None else system.Q
    Lambda, P, Q = (torch.cat([m, m.conj()], -1).to(torch.complex128) for m in (system.Lambda, system.P, Q))
    return torch.linalg.eigvals(torch.diag_embed(Lambda) - P.mT @ Q.conj())


def _selective(mixer: Mamba | Mamba2) -> Poles:
    dynamics = mixer.dynamics
    A = dynamics() if isinstance(mixer, Mamba) else -wide(dynamics.A_log).exp().unsqueeze(-1)
    dt = F.softplus(wide(dynamics.dt_bias))
    if isinstance(mixer, Mamba2):
        dt = dt.clamp(*mixer.config.dt_limit)
    A = _pairs(A) + 0j
    return Poles(name="", discrete=(A * dt[:, None]).exp(), continuous=A, dt=dt)
