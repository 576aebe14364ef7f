"""Systems of scipy.signal and of python-control, in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.errors import InputError, importing
from statewise.systems.base import System
from statewise.systems.continuous import ContinuousSystem
from statewise.systems.discrete import DiscreteSystem


def from_scipy(system: Any) -> ContinuousSystem | DiscreteSystem:
    """A system of scipy.signal: StateSpace, TransferFunction, ZerosPolesGain, ``lti`` or ``dlti``.

    One with ``dt`` becomes a :class:`DiscreteSystem` with ``reads="before"``, SciPy's convention, and ``dt=True`` (no
    unit) becomes 1. One input, or one output, has no axis.

    Shapes:  -> A (n, n), float64 or complex128
    Errors:  InputError for anything else, a system without states, a transfer function whose numerator has the higher
             order, and where SciPy is not installed.

    >>> from scipy import signal
    >>> from_scipy(signal.lti([1.0], [1.0, 0.5, 4.0])).poles().real
    tensor([-0.2500, -0.2500], dtype=torch.float64)
    """
    with importing("scipy.signal", "files", "from_scipy needs"):
        from scipy import signal
    if not isinstance(system, (signal.lti, signal.dlti)):
        raise InputError(
            f"from_scipy takes a system of scipy.signal (StateSpace, lti, dlti, ...), got {type(system).__name__}"
        )
    try:
        found: Any = system.to_ss()
    except ValueError as error:  # a numerator of a higher order than the denominator
        raise InputError(f"SciPy cannot bring this transfer function into states: {error}") from None
    return _ours(found.A, found.B, found.C, found.D, found.dt)


def to_scipy(system: System) -> Any:
    """The same system as scipy.signal's StateSpace: ``signal.bode(to_scipy(system))``.

    A system whose output reads the state after its input becomes one that reads it before
    (:meth:`DiscreteSystem.reading_before`), so all responses are the same.

    Shapes:  one system, without leading axes
    Errors:  InputError for a complex system (SciPy holds its matrices, but its responses drop imaginary parts), a
             batch, a system without C, and where SciPy is not installed.
    """
    with importing("scipy.signal", "files", "to_scipy needs"):
        from scipy import signal
    A, B, C, D, dt = _theirs(system, "to_scipy")
    return signal.StateSpace(A, B, C, D) if dt is None else signal.StateSpace(A, B, C, D, dt=dt)


def from_control(system: Any) -> ContinuousSystem | DiscreteSystem:
    """A StateSpace or TransferFunction of python-control. The rest as :func:`from_scipy`; a system whose ``dt`` is None
    (unspecified) counts as continuous, as python-control itself takes it.

    Errors:  InputError for anything else, a system without states, a transfer function whose numerator has the higher
             order, and where python-control is not installed.
    """
    with importing("control", "control", "from_control needs"):
        import control
    if not isinstance(system, (control.StateSpace, control.TransferFunction)):
        raise InputError(
            f"from_control takes a StateSpace or TransferFunction of python-control, got {type(system).__name__}"
        )
    try:
        found: Any = control.ss(system)
    except (ImportError, control.ControlMIMONotImplemented):  # a matrix of transfer functions needs slycot
        raise InputError("python-control cannot bring this transfer function into states; give a StateSpace") from None
    except ValueError as error:  # a numerator of a higher order than the denominator
        raise InputError(f"python-control cannot bring this transfer function into states: {error}") from None
    return _ours(found.A, found.B, found.C, found.D, found.dt or None)


def to_control(system: System) -> Any:
    """The same system as python-control's StateSpace. The rest as :func:`to_scipy`.

    Errors:  InputError for a complex system, a batch, a system without C, and where python-control is not installed.
    """
    with importing("control", "control", "to_control needs"):
        import control
    A, B, C, D, dt = _theirs(system, "to_control")
    return control.ss(A, B, C, D) if dt is None else control.ss(A, B, C, D, dt)


def _ours(A: Any, B: Any, C: Any, D: Any, dt: Any) -> ContinuousSystem | DiscreteSystem:
    given = [np.atleast_2d(np.asarray(z)) for z in (A, B, C, D)]
    complex_ = any(np.iscomplexobj(z) for z in given)
    tensors = [torch.tensor(z, dtype=torch.complex128 if complex_ else torch.float64) for z in given]
    if not tensors[0].numel():
        raise InputError("this system has no states, only a gain; multiply by its D instead")
    a, b, c, d = tensors
    if b.shape[-1] == 1:
        b, d = b[:, 0], d[:, 0]
    if c.shape[0] == 1:
        c, d = c[0], d[0]
    if dt is None:
        return ContinuousSystem(a, b, c, d)
    return DiscreteSystem(a, b, c, d, 1.0 if dt is True else float(dt), reads="before")


def _theirs(system: System, asked: str) -> tuple[Any, Any, Any, Any, float | None]:
    if not isinstance(system, (ContinuousSystem, DiscreteSystem)):
        raise InputError(f"{asked} takes a ContinuousSystem or a DiscreteSystem, got {type(system).__name__}")
    if system.leading:
        raise InputError(f"{asked} takes one system; got a batch {system.leading}: index it")
    dt: float | None = None
    if isinstance(system, DiscreteSystem):
        system = system.reading_before()
        assert isinstance(system, DiscreteSystem)
        assert isinstance(system.dt, Tensor)
        dt = float(system.dt)
    A, B, C, D = (z.detach().cpu() for z in system._matrices())
    if any(z.is_complex() for z in (A, B, C, D)):  # theirs answer with real parts alone, SciPy with a warning at most
        raise InputError(
            f"{asked} takes a real system, because theirs answer with real parts; this one is complex: use its own "
            "simulate and frequency_response"
        )
    A = torch.diag(A) if system.diagonal else A
    return A.numpy(), B.numpy(), C.numpy(), D.numpy(), dt
