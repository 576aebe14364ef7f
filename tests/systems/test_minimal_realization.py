"""minimal_realization on systems whose numbers span many orders of magnitude: units, speeds, delay lines, channels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_reduction import C128, F64, frequencies, random
from torch import Tensor

from statewise import hippo
from statewise.errors import InputError
from statewise.systems import (
    ContinuousSystem,
    DiscreteSystem,
    companion_form,
    controllability_rank,
    mass_spring_damper,
    minimal_realization,
    observability_rank,
)
from statewise.systems.base import System
from statewise.systems.responses import Parts, responses


def with_units(system: System, units: Tensor) -> System:
    """The same system, its states measured otherwise."""
    assert system.C is not None
    A, B = system.A * units / units.unsqueeze(-1), system.B / units.unsqueeze(-1)
    return replace(system, A=A, B=B, C=system.C * units)


@pytest.mark.parametrize("discrete", [False, True])
def test_the_units_of_the_states_do_not_matter(discrete: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    for seed in range(20):
        whole = random(5, 1, 1, discrete=discrete, seed=seed)
        A = torch.block_diag(whole.A, torch.tensor([[0.3]], dtype=F64))  # one more, neither reached nor shown
        A[5, 2] = 1.0 if seed % 2 else 0.0  # or is reached alone
        assert whole.C is not None
        system = replace(
            whole, A=A, B=torch.cat([whole.B, torch.zeros(1, 1)]), C=torch.cat([whole.C, torch.zeros(1, 1)], 1)
        )
        for power in (0, 3, 8):
            units = 10.0 ** (power * (2 * torch.rand(6, dtype=F64, generator=draw) - 1))
            other = with_units(system, units)
            if seed % 2 == 0:  # a state that leads nowhere keeps its unit in the ranks
                assert (controllability_rank(other), observability_rank(other)) == (5, 5)
            minimal = minimal_realization(other)
            assert minimal.A.shape == (5, 5)
            omega = frequencies(whole)[::100]
            expected = whole.frequency_response(omega)
            torch.testing.assert_close(minimal.frequency_response(omega), expected, rtol=1e-7, atol=1e-9)


def test_fast_and_stiff_systems_keep_their_states() -> None:
    """An oscillator of 16 kHz, a filter of 1 kHz in companion form, and a state that moves a million times less."""
    spring = mass_spring_damper(1.0, 1e10, 2e3)
    both = replace(spring, C=torch.ones(2, dtype=F64))
    cut = 6283.0
    filtered = ContinuousSystem(
        torch.tensor([[-2 * cut, -2 * cut**2, -(cut**3)], [1, 0, 0], [0, 1, 0]], dtype=F64),
        torch.tensor([1.0, 0, 0], dtype=F64),
        torch.tensor([0, 0, cut**3], dtype=F64),
    )
    slow = ContinuousSystem(
        torch.tensor([[-1e6, 0.0], [1e-6, -1e-3]], dtype=F64),
        torch.tensor([1e6, 0.0], dtype=F64),
        torch.ones(2, dtype=F64),
    )
    for system in (spring, both, filtered, slow):
        minimal = minimal_realization(system)
        assert minimal.A.shape == system.A.shape
        omega = torch.tensor([0.0, 1e-3, 1.0, 1e3, 1e5, 2e5], dtype=F64)
        expected = system.frequency_response(omega)
        torch.testing.assert_close(minimal.frequency_response(omega), expected, rtol=1e-9, atol=0)
    for system in (spring, both, filtered):
        assert controllability_rank(system) == observability_rank(system) == len(system.A)
        torch.testing.assert_close(
            companion_form(system).system.frequency_response(omega), system.frequency_response(omega), rtol=1e-9, atol=0
        )


def low_pass_and_fast_pole(order: int, fast: float) -> ContinuousSystem:
    """Butterworth's low-pass of 1 rad/s in companion form, with a pole beside it that is ``fast`` times as fast."""
    k = torch.arange(order, dtype=F64)
    poles = torch.polar(torch.ones_like(k), math.pi * (2 * k + order + 1) / (2 * order))
    a = torch.ones(1, dtype=C128)
    for pole in poles:
        a = torch.nn.functional.pad(a, (0, 1)) - torch.nn.functional.pad(a, (1, 0)) * pole
    A = torch.diag_embed(torch.ones(order - 1, dtype=F64), -1)
    A[0] = -a.real[1:]
    B, C = torch.zeros(order + 1, 1, dtype=F64), torch.zeros(1, order + 1, dtype=F64)
    B[0], C[0, order - 1] = 1, 1
    B[order], C[0, order] = fast, 1
    return ContinuousSystem(torch.block_diag(A, torch.tensor([[-fast]], dtype=F64)), B, C)


@pytest.mark.parametrize(("order", "fast"), [(2, 1e8), (3, 1e5), (4, 1e4), (5, 1e3), (6, 1e3), (8, 100.0), (10, 30.0)])
def test_a_slow_part_beside_a_fast_one_stays(order: int, fast: float) -> None:
    """At the frequencies of the fast pole alone, the low-pass is nothing."""
    system = low_pass_and_fast_pole(order, fast)
    omega = torch.tensor([0.0, 0.3, 1.0, 3.0, fast / 2, fast], dtype=F64)
    expected = system.frequency_response(omega)
    same = minimal_realization(system)
    torch.testing.assert_close(same.A, system.A, rtol=0, atol=0)
    more = replace(
        system,
        A=torch.block_diag(system.A, torch.diag(torch.tensor([-0.5, -fast / 3], dtype=F64))),
        B=torch.cat([system.B, torch.tensor([[0.0], [1.0]], dtype=F64)]),
        C=torch.cat([system.C, torch.tensor([[1.0, 0.0]], dtype=F64)], 1),
    )
    more.A[0, order + 1], more.A[order + 2, 0] = 0.4, 2.0  # the first is not reached, the second not shown
    draw = torch.Generator().manual_seed(order)
    for units in (torch.ones(order + 3, dtype=F64), 10.0 ** (8 * torch.rand(order + 3, dtype=F64, generator=draw) - 4)):
        minimal = minimal_realization(with_units(more, units))
        assert minimal.A.shape == system.A.shape
        torch.testing.assert_close(minimal.frequency_response(omega), expected, rtol=1e-7, atol=1e-9)


def test_a_chain_over_eight_decades_keeps_its_responses() -> None:
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        poles = 10.0 ** (8 * torch.rand(8, dtype=F64, generator=draw))
        A = torch.diag(poles[1:], -1) - torch.diag(poles)
        B = torch.zeros(8, dtype=F64)
        B[0] = poles[0]
        system = ContinuousSystem(A, B, torch.randn(8, dtype=F64, generator=draw))
        omega = torch.logspace(-1, 9, 30, dtype=F64)
        expected = system.frequency_response(omega)
        found = minimal_realization(system).frequency_response(omega)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7 * float(expected.abs().max()))


def test_a_coupling_that_is_rounding_reaches_nothing() -> None:
    A = torch.tensor([[-1.0, 0.5], [1e-17, -2.0]], dtype=F64)
    system = ContinuousSystem(A, torch.tensor([1.0, 0.0], dtype=F64), torch.tensor([1.0, 0.0], dtype=F64))
    torch.testing.assert_close(minimal_realization(system).A, torch.tensor([[-1.0]], dtype=F64))


def test_delay_lines_and_large_measures_come_back_as_they_are() -> None:
    """All their poles are equal, and the resolvent falls with every state: far out, most of them are nothing."""
    taps = torch.linspace(1.0, 0.1, 39, dtype=F64)
    shift = torch.diag(torch.ones(38, dtype=F64), -1)
    line = DiscreteSystem(shift, torch.eye(39, dtype=F64)[0], taps)
    for system in (
        line,
        *(ContinuousSystem(*hippo.transition(m, 100), torch.ones(100, dtype=F64)) for m in ("lagt", "legs")),
    ):
        torch.testing.assert_close(minimal_realization(system).A, system.A, rtol=0, atol=0)
    longer = replace(
        line,
        A=torch.block_diag(shift, torch.tensor([[0.5]], dtype=F64)),
        B=torch.cat([line.B, torch.zeros(1, dtype=F64)]),
        C=torch.cat([taps, torch.ones(1, dtype=F64)]),
    )
    minimal = minimal_realization(longer)
    assert minimal.A.shape == (39, 39)
    omega = torch.linspace(0.0, 3.0, 30, dtype=F64)
    torch.testing.assert_close(minimal.frequency_response(omega), line.frequency_response(omega), rtol=0, atol=1e-9)


def test_integrators_beside_a_fast_pole_and_channels_in_unlike_units() -> None:
    chain = torch.diag(torch.ones(5, dtype=F64), -1)
    chain[4, 3], chain[5, 4], chain[5, 5] = 0.0, 0.0, -2.0
    chain[4, 4] = -1e4
    system = ContinuousSystem(
        chain,
        torch.tensor([1.0, 0, 0, 0, 1e4, 0], dtype=F64),
        torch.tensor([0.0, 0, 0, 1.0, 1.0, 1.0], dtype=F64),  # the last state is not reached
    )
    minimal = minimal_realization(system)
    assert minimal.A.shape == (5, 5)
    omega = torch.tensor([0.1, 1.0, 10.0, 1e4], dtype=F64)
    expected = system.frequency_response(omega)
    torch.testing.assert_close(minimal.frequency_response(omega), expected, rtol=1e-7, atol=1e-9)
    unlike = torch.tensor([1.0, 1e-9, 1.0], dtype=F64)  # volts and nanometres
    A = torch.tensor([[-1.0, 0, 0.3], [0, -2.0, 0], [0, 0, -3.0]], dtype=F64)
    both = ContinuousSystem(A, torch.diag(unlike)[:, :2], torch.diag(unlike)[:2])
    minimal = minimal_realization(both)
    assert minimal.A.shape == (2, 2)
    found, expected = (s.frequency_response(omega) for s in (minimal, both))
    torch.testing.assert_close(found[..., 1, 1], expected[..., 1, 1], rtol=1e-7, atol=0)


def test_no_resonance_is_moved_by_more_than_is_allowed() -> None:
    """Two systems of float32 whose sum has the responses of one, but for rounding: the result is as sharp."""
    for damping in (1e-2, 1e-4):
        spring = torch.tensor([[0.0, 1.0], [-2.0, -damping]])
        both = ContinuousSystem(
            torch.block_diag(spring, spring), torch.tensor([0.0, 1, 0, 1]), torch.tensor([1.0, 0, 1, 0])
        )
        small = minimal_realization(both)
        omega = torch.linspace(1.2, 1.6, 401, dtype=F64)
        wide = [ContinuousSystem(*(x.to(F64) for x in (one.A, one.B, one.C))) for one in (both, small)]  # type: ignore[union-attr]
        given, found = (one.frequency_response(omega) for one in wide)
        assert float((found - given).abs().max() / given.abs().max()) < 1e-3


def test_a_loose_tolerance_does_not_allow_another_system() -> None:
    system = ContinuousSystem(torch.diag(torch.tensor([-1.0, -2.0])), torch.tensor([1.0, 0.5]), torch.ones(2))
    assert len(minimal_realization(system, tolerance=0.9).A) == 2


def test_without_inputs_or_outputs_it_says_so() -> None:
    for B, C in ((torch.zeros(2, 0), torch.ones(1, 2)), (torch.ones(2, 1), torch.ones(0, 2))):
        with pytest.raises(InputError, match="needs an input and an output"):
            minimal_realization(ContinuousSystem(-torch.eye(2), B, C))


# ------------------------------------------------------------------------- as many states and inputs as there are z

SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("k", SIZES)
def test_responses_of_every_size(n: int, m: int, k: int, dtype: torch.dtype) -> None:
    """One frequency after the other, by inverses; n, m and k may be the same number."""
    g = torch.Generator().manual_seed(0)
    A, B, C = (torch.randn(shape, dtype=dtype, generator=g) for shape in ((n, n), (n, m), (2, n)))
    z = 5 + torch.randn(k, dtype=torch.complex128, generator=g)
    seen = responses(Parts(A, B, C), z)
    for i in range(k):
        inverse = torch.linalg.inv(z[i] * torch.eye(n, dtype=C128) - A)
        expected = (inverse @ (B + 0j), (C + 0j) @ inverse, (C + 0j) @ inverse @ (B + 0j))
        for found, wanted in zip(seen[:3], expected):
            torch.testing.assert_close(found[i], wanted, rtol=1e-10, atol=1e-12)


def test_as_many_inputs_as_states_reduce_as_others() -> None:
    """Poles of -1 to -5 and states that no input reaches: as many are left as are reached."""
    for n, reached in ((3, 2), (5, 3), (4, 4), (1, 1)):
        A = torch.diag(-torch.arange(1.0, n + 1, dtype=torch.float64))
        for m in (1, 2, 3, 4):
            B = torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(m))
            B[reached:] = 0
            for dtype in (torch.float64, torch.complex128):
                given = ContinuousSystem(A.to(dtype), B.to(dtype), torch.ones(1, n, dtype=dtype))
                found = minimal_realization(given)
                assert found.A.shape == (reached, reached), (n, m, dtype)
                omega = torch.tensor([0.0, 1.0, 7.0], dtype=torch.float64)
                torch.testing.assert_close(found.frequency_response(omega), given.frequency_response(omega))
