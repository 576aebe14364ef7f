"""Controllability, observability, Gramians, minimal realisation and balanced truncation, against their definitions."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems import (
    ContinuousSystem,
    DiscreteSystem,
    balanced_truncation,
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


@pytest.mark.parametrize("off", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_what_rounding_adds_to_the_bound_is_told(dtype: torch.dtype, off: float) -> None:
    """Slow discrete poles: the error at the frequencies beside them"""
    ones = torch.ones(4, dtype=dtype)
    system = DiscreteSystem(torch.tensor([1 - off, 0.9, 0.5, -0.3], dtype=dtype), ones, ones, diagonal=True)
    blurred = dtype == torch.float32 and off < 1e-4
    with pytest.warns(UserWarning, match=r"rounding it to .* may change its response by") if blurred else nullcontext():
        found = balanced_truncation(system, 3)
    poles, reduced = system.A.double(), found.system._matrices()
    assert reduced[2] is not None
    A, B, C = (m.to(C128) for m in reduced[:3])
    for omega in (0.0, off / 10, off, 10 * off, 1.0, 3.0):
        z = torch.polar(torch.ones((), dtype=F64), torch.tensor(omega, dtype=F64))
        given = (1 / (z - poles)).sum()
        kept = (C @ torch.linalg.solve(z * torch.eye(3) - A, B)).squeeze()
        assert (given - kept).abs() <= found.bound + found.rounding
    if dtype == F64 and off == 1e-3:
        assert found.rounding < 1e-8


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_units_of_any_size(scale: float) -> None:
    """Of inputs and of time, whose squares do not fit float64."""
    A = torch.tensor([[-1.0, 0.5], [0, -2]], dtype=F64)
    one = torch.ones(2, dtype=F64)
    want = hankel_singular_values(ContinuousSystem(A, one, one))
    for system, unit in (
        (ContinuousSystem(A, one * scale, one), scale),
        (ContinuousSystem(A, one, one * scale), scale),
        (ContinuousSystem(A * scale, one, one), 1 / scale),
    ):
        torch.testing.assert_close(hankel_singular_values(system) / unit, want, rtol=1e-12, atol=0)
        torch.testing.assert_close(minimal_realization(system).A, system.A)
        wasteful = ContinuousSystem(
            torch.block_diag(system.A, system.A),
            torch.cat([system.B] * 2),
            torch.cat([system.C] * 2),  # type: ignore[list-item]
        )
        assert len(minimal_realization(wasteful).A) == 2
