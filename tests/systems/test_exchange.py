"""Systems of SciPy and of python-control: the same responses on both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_reduction import C128, random

from statewise import ContinuousSystem, DiscreteSystem, discretize
from statewise.errors import InputError
from statewise.systems import from_control, from_scipy, to_control, to_scipy

signal = pytest.importorskip("scipy.signal")
OMEGA = np.linspace(0.1, 3, 20)


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_scipy_continuous(ends: tuple[int, int]) -> None:
    system = random(4, *ends)
    theirs = to_scipy(system)
    back = from_scipy(theirs)
    assert isinstance(back, ContinuousSystem)
    assert (back.single_input, back.single_output) == (ends[0] == 1, ends[1] == 1)
    expected = system.frequency_response(torch.from_numpy(OMEGA))  # type: ignore[attr-defined]
    found = back.frequency_response(torch.from_numpy(OMEGA))
    torch.testing.assert_close(found.reshape(expected.shape), expected)
    if ends == (1, 1):
        torch.testing.assert_close(torch.from_numpy(signal.freqresp(theirs, OMEGA)[1]), expected.flatten())


@pytest.mark.parametrize("method", ["zoh", "foh"])
@pytest.mark.parametrize("ends", [(1, 1), (2, 3)])
def test_scipy_discrete_takes_what_reads_after_and_before(ends: tuple[int, int], method: str) -> None:
    system = discretize(random(4, *ends), 0.25, method)  # type: ignore[arg-type]
    u = torch.randn(30, ends[0], dtype=torch.float64)
    expected, _ = system.simulate(u)
    _, found, _ = signal.dlsim(to_scipy(system), u.numpy())
    torch.testing.assert_close(torch.from_numpy(found), expected)
    before = system.reading_before()
    assert before.reads == "before"
    torch.testing.assert_close(before.simulate(u)[0], expected)
    back = from_scipy(to_scipy(system))
    assert isinstance(back, DiscreteSystem)
    assert back.dt == 0.25
    y, _ = back.simulate(u if ends[0] > 1 else u[:, 0])
    torch.testing.assert_close(y.reshape(expected.shape), expected)


def test_diagonal_systems_go_out_dense() -> None:
    poles = torch.tensor([-1.0, -0.5], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    system = ContinuousSystem(poles, ones, ones, diagonal=True)
    assert np.array_equal(to_scipy(system).A, np.diag(poles.numpy()))
    step = discretize(system, 0.1)
    u = torch.randn(9, dtype=torch.float64)
    torch.testing.assert_close(step.reading_before().simulate(u)[0], step.simulate(u)[0])


def test_every_kind_of_scipys() -> None:
    for theirs in (signal.lti([1.0, 2.0], [1.0, 3.0, 2.0]), signal.ZerosPolesGain([-1.0], [-2.0, -3.0], 5.0)):
        found = from_scipy(theirs).frequency_response(torch.from_numpy(OMEGA))
        torch.testing.assert_close(found, torch.from_numpy(theirs.freqresp(OMEGA)[1]))
    unitless = from_scipy(signal.dlti([1.0], [1.0, 0.5]))
    assert isinstance(unitless, DiscreteSystem)
    assert unitless.dt == 1
    with pytest.raises(InputError, match="SciPy cannot bring this transfer function into states: Improper"):
        from_scipy(signal.lti([1.0, 0.0, 0.0], [1.0, 1.0]))


def test_python_control() -> None:
    control = pytest.importorskip("control")
    for system in (random(4, 2, 3), discretize(random(4, 1, 1), 0.5)):  # type: ignore[arg-type]
        theirs = to_control(system)
        expected = system.frequency_response(torch.from_numpy(OMEGA))  # type: ignore[union-attr]
        found = torch.from_numpy(theirs.frequency_response(OMEGA, squeeze=False).complex)
        torch.testing.assert_close(found.reshape(expected.shape), expected)
        back = from_control(theirs)
        torch.testing.assert_close(back.frequency_response(torch.from_numpy(OMEGA)).reshape(expected.shape), expected)
    assert from_control(control.tf([1.0], [1.0, 2.0])).poles().real == -2
    unitless = from_control(control.tf([1.0], [1.0, 0.5], True))
    assert isinstance(unitless, DiscreteSystem)
    with pytest.raises(InputError, match=r"python-control cannot bring this transfer function into states: .*proper"):
        from_control(control.tf([1.0, 0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(InputError, match="to_control takes a real system"):
        to_control(random(2, 1, 1, C128))


def test_a_complex_system_comes_in_and_does_not_go_out() -> None:
    """SciPy's functions drop imaginary parts: its freqresp of a complex StateSpace is another system's."""
    system = random(4, 2, 3, C128)
    A, B, C, D = (z.numpy() for z in system._matrices())
    back = from_scipy(signal.StateSpace(A, B, C, D))
    omega = torch.from_numpy(OMEGA)
    torch.testing.assert_close(back.frequency_response(omega), system.frequency_response(omega))
    with pytest.raises(InputError, match=r"to_scipy takes a real system, .*use its own"):
        to_scipy(system)


def test_errors() -> None:
    for call in (from_scipy, from_control, to_scipy, to_control):
        with pytest.raises(InputError, match=r"takes a .*, got int"):
            call(3)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"takes one system; got a batch \(2,\)"):
        to_scipy(ContinuousSystem(torch.zeros(2, 3, 3), torch.zeros(2, 3), torch.zeros(2, 3)))
    with pytest.raises(InputError, match="no C"):
        to_scipy(ContinuousSystem(torch.zeros(3, 3), torch.zeros(3)))
    with pytest.raises(InputError, match="no states, only a gain"):
        from_scipy(signal.StateSpace(np.zeros((0, 0)), np.zeros((0, 1)), np.zeros((1, 0)), [[2.0]]))
