"""Controllability, observability, Gramians, minimal realisation and balanced truncation, against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from statewise import hippo
from statewise.errors import InputError
from statewise.systems import (
    ContinuousSystem,
    DiscreteSystem,
    balanced_truncation,
    companion_form,
    controllability_gramian,
    controllability_matrix,
    controllability_rank,
    discretize,
    hankel_singular_values,
    mass_spring_damper,
    minimal_realization,
    observability_gramian,
    observability_matrix,
    observability_rank,
)
from statewise.systems.base import System

F64, C128 = torch.float64, torch.complex128


def random(n: int, m: int, p: int, dtype: torch.dtype = F64, *, discrete: bool = False, seed: int = 0) -> System:
    """A stable system, dense and far from normal."""
    draw = torch.Generator().manual_seed(seed)
    A, B, C, D = (torch.randn(*s, dtype=dtype, generator=draw) for s in ((n, n), (n, m), (p, n), (p, m)))
    A = A + 3 * A.triu(1)
    poles = torch.linalg.eigvals(A)
    if discrete:
        return DiscreteSystem(A * 0.95 / poles.abs().max(), B, C, D, 0.5)
    return ContinuousSystem(A - (poles.real.max() + 0.3) * torch.eye(n, dtype=dtype), B, C, D)


def by_definition(A: Tensor, B: Tensor, *, discrete: bool) -> Tensor:
    """The integral, by Gauss and Legendre on 100 intervals, or the sum of 2,000 terms."""
    if discrete:
        total, term = torch.zeros_like(A), B
        for _ in range(2000):
            total, term = total + term @ term.mH, A @ term
        return total
    nodes, weights = (torch.from_numpy(z) for z in np.polynomial.legendre.leggauss(20))
    total, step = torch.zeros_like(A), 1.0
    parts = [torch.matrix_exp(A * ((x + 1) / 2 * step)) @ B for x in nodes]
    first = sum(w / 2 * step * part @ part.mH for w, part in zip(weights, parts))
    move = torch.matrix_exp(A * step)
    for _ in range(100):
        total, first = total + first, move @ first @ move.mH
    return total


def frequencies(system: System) -> Tensor:
    if isinstance(system, DiscreteSystem):
        return torch.linspace(0, float(torch.pi / system.dt), 4000, dtype=F64)
    return torch.cat([torch.zeros(1, dtype=F64), torch.logspace(-4, 4, 4000, dtype=F64)])


def worst(one: System, other: System) -> float:
    """The H-infinity norm of the difference on a fine grid, over positive and negative frequencies."""
    omega = frequencies(one)
    omega = torch.cat([-omega.flip(0), omega])
    error = (one.frequency_response(omega) - other.frequency_response(omega)).movedim(-1, 0)
    return float((torch.linalg.matrix_norm(error, 2) if error.ndim == 3 else error.abs()).max())


CASES = [(dtype, discrete, m, p) for dtype in (F64, C128) for discrete in (False, True) for m, p in ((1, 1), (2, 3))]


@pytest.mark.parametrize(("dtype", "discrete", "m", "p"), CASES)
def test_gramians_are_their_integrals_and_sums(dtype: torch.dtype, discrete: bool, m: int, p: int) -> None:
    system = random(5, m, p, dtype, discrete=discrete)
    P, Q = controllability_gramian(system), observability_gramian(system)
    assert system.C is not None
    torch.testing.assert_close(P, by_definition(system.A, system.B, discrete=discrete), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(Q, by_definition(system.A.mH, system.C.mH, discrete=discrete), rtol=1e-9, atol=1e-9)
    A, B = system.A, system.B
    left = A @ P @ A.mH - P if discrete else A @ P + P @ A.mH
    assert (left + B @ B.mH).norm() < 1e-11 * P.norm() * max(1, A.norm()) ** 2
    values = torch.linalg.eigvals(P @ Q).real.sort(descending=True).values.sqrt()
    torch.testing.assert_close(hankel_singular_values(system), values, rtol=1e-6, atol=1e-8)


def test_gramians_of_diagonal_stiff_and_batched_systems() -> None:
    rates = torch.logspace(-6, 6, 7, dtype=F64).repeat(2, 1)
    rates[1] *= 3
    system = ContinuousSystem(-rates, torch.ones(1, 7, dtype=F64), torch.ones(1, 7, dtype=F64), diagonal=True)
    exact = 1 / (rates.unsqueeze(-1) + rates.unsqueeze(-2))
    torch.testing.assert_close(controllability_gramian(system), exact, rtol=1e-9, atol=0)
    torch.testing.assert_close(observability_gramian(system), exact, rtol=1e-9, atol=0)
    narrow = replace(system, A=system.A.float(), B=system.B.float(), C=system.C.float())
    assert controllability_gramian(narrow).dtype == torch.float32


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("dtype", [F64, C128])
def test_matrices_ranks_and_minimal_realisation(dtype: torch.dtype, discrete: bool) -> None:
    """Three states that count, two that inputs do not reach, two that no output shows, mixed by a rotation."""
    core = random(3, 2, 2, dtype, discrete=discrete)
    draw = torch.Generator().manual_seed(1)
    A = torch.randn(7, 7, dtype=dtype, generator=draw) / 4
    A[:3, :3], A[:3, 5:], A[3:5, :5], A[5:, 3:5] = core.A, 0, 0, 0  # 3, 4: not reached; 5, 6: not shown
    A[3:5, 3:], A[5:, :3] = 0, A[5:, :3]
    A[3, 3], A[4, 4] = -0.5, -0.7
    B, C = torch.zeros(7, 2, dtype=dtype), torch.zeros(2, 7, dtype=dtype)
    B[:3], C[:, :3] = core.B, core.C
    B[5:], C[:, 3:5] = torch.randn(2, 2, dtype=dtype, generator=draw), torch.randn(2, 2, dtype=dtype, generator=draw)
    turn, _ = torch.linalg.qr(torch.randn(7, 7, dtype=dtype, generator=draw))
    system = replace(core, A=turn @ A @ turn.mH, B=turn @ B, C=C @ turn.mH)
    matrix = controllability_matrix(system)
    torch.testing.assert_close(matrix[:, 4:6], torch.linalg.matrix_power(system.A, 2) @ system.B)
    assert torch.linalg.matrix_rank(matrix, rtol=1e-10) == controllability_rank(system) == 5
    shown = observability_matrix(system)
    torch.testing.assert_close(shown[4:6], system.C @ torch.linalg.matrix_power(system.A, 2))
    assert torch.linalg.matrix_rank(shown, rtol=1e-10) == observability_rank(system) == 5
    small = minimal_realization(system)
    assert small.A.shape == (3, 3)
    assert worst(small, core) < 1e-9


def test_ranks_of_batches_and_of_systems_that_grow() -> None:
    A = torch.diag_embed(torch.tensor([[1.0, 2.0], [1.0, 1.0]]))
    batch = ContinuousSystem(A, torch.ones(2, 2), torch.ones(2, 2))
    assert controllability_rank(batch).tolist() == observability_rank(batch).tolist() == [2, 1]
    one = minimal_realization(ContinuousSystem(A[1], torch.ones(2), torch.ones(2)))
    assert one.A.shape == (1, 1)
    assert one.B.shape == one.C.shape == (1,)
    torch.testing.assert_close(one.B @ one.C, torch.tensor(2.0))


@pytest.mark.parametrize(("dtype", "discrete", "m", "p"), CASES)
@pytest.mark.parametrize("n_states", [1, 4, 7])
def test_balanced_truncation_stays_within_its_bound(
    dtype: torch.dtype, discrete: bool, m: int, p: int, n_states: int
) -> None:
    system = random(8, m, p, dtype, discrete=discrete, seed=2)
    reduced, hankel, bound = balanced_truncation(system, n_states)
    assert reduced.A.shape == (n_states, n_states)
    assert bool(reduced.is_stable())
    error = worst(system, reduced)
    rounding = 1e-12 * hankel[0]
    assert hankel[n_states] - rounding <= error <= bound + rounding, "no system of that order can have less"
    values = torch.diag_embed(hankel[:n_states]).to(dtype)
    if not discrete:  # the truncated Gramians of a continuous system are its own
        torch.testing.assert_close(controllability_gramian(reduced), values, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(observability_gramian(reduced), values, rtol=1e-7, atol=1e-9)


def test_balancing_alone_changes_nothing_and_both_readings_have_one_bound() -> None:
    spring = mass_spring_damper(1.0, torch.tensor([4.0, 9.0], dtype=F64), 0.5)
    balanced, hankel, bound = balanced_truncation(spring, 2)
    assert not bound.any()
    torch.testing.assert_close(controllability_gramian(balanced), hankel.diag_embed())
    omega = torch.tensor([0.0, 2.0, 5.0], dtype=F64)
    torch.testing.assert_close(balanced.frequency_response(omega), spring.frequency_response(omega))
    single = discretize(mass_spring_damper(1.0, 4.0, 0.5), 0.3, "zoh")
    for reads in ("after", "before"):
        whole = replace(single, reads=reads)
        reduced, _, bound = balanced_truncation(whole, 1)
        assert reduced.reads == reads
        assert worst(whole, reduced) <= bound


def test_hilbert_like_values_are_right_far_below_the_largest() -> None:
    """LegS forgets nothing and has values down to 1e-8 of the first: relative accuracy there takes the factors."""
    n = 12
    i = torch.arange(n, dtype=F64)
    root = (2 * i + 1).sqrt()
    A = -torch.tril(torch.outer(root, root), -1) - torch.diag(i + 1)
    system = ContinuousSystem(A, root, torch.ones(n, dtype=F64) / (i + 1))
    reduced, hankel, bound = balanced_truncation(system, 6)
    assert worst(system, reduced) <= bound * (1 + 1e-6)
    assert bool((hankel.diff() <= 0).all())


def test_refusals() -> None:
    one = torch.ones(2, dtype=F64)
    grows = ContinuousSystem(torch.tensor([0.0, -1.0], dtype=F64), one, one, diagonal=True)
    for function in (controllability_gramian, observability_gramian, hankel_singular_values):
        with pytest.raises(InputError, match=r"pole at 0.*does not decay"):
            function(grows)
    stable = ContinuousSystem(-one, one, one, diagonal=True)
    for wrong in (0, 3, 1.0, True):
        with pytest.raises(InputError, match="n_states must be a whole number from 1 to the system's 2"):
            balanced_truncation(stable, wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="only 1 Hankel singular values"):
        balanced_truncation(stable, 2)
    with pytest.raises(InputError, match="no C"):
        observability_rank(ContinuousSystem(-one, one, diagonal=True))
    with pytest.raises(InputError, match="tolerance"):
        controllability_rank(stable, tolerance=0)
    with pytest.raises(InputError, match="one system"):
        minimal_realization(mass_spring_damper(1.0, one, 0.5))
    with pytest.raises(InputError, match="D alone"):
        minimal_realization(ContinuousSystem(-one, 0 * one, one, diagonal=True))
    with pytest.raises(InputError, match="must be a ContinuousSystem"):
        controllability_gramian(one)  # type: ignore[arg-type]


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
