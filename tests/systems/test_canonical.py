"""Canonical forms: the same responses in other coordinates, and the forms that they say they are."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import pytest
import torch
from test_reduction import C128, F64, random

from statewise import ContinuousSystem, DiscreteSystem, hippo
from statewise.errors import InputError
from statewise.systems import (
    balanced_truncation,
    companion_form,
    controllability_gramian,
    discretize,
    hankel_singular_values,
    mass_spring_damper,
    modal_form,
    normal_plus_low_rank,
    observability_gramian,
)
from statewise.systems.base import System

OMEGA = torch.linspace(0, 5, 40, dtype=F64)


def assert_same_responses(one: System, other: System) -> None:
    found, expected = (z.frequency_response(OMEGA) for z in (one, other))  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("ends", [(1, 1), (2, 3)])
def test_modal_form(ends: tuple[int, int], discrete: bool, dtype: torch.dtype) -> None:
    system = random(6, *ends, dtype, discrete=discrete, seed=3)
    modal, T, condition = modal_form(system)
    assert type(modal) is type(system)
    assert modal.diagonal
    assert_same_responses(modal, system)
    torch.testing.assert_close(system.A.to(C128) @ T, T * modal.A, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(condition, torch.linalg.svdvals(T)[0] / torch.linalg.svdvals(T)[-1])
    again, _, one = modal_form(modal)
    assert torch.equal(again.A, modal.A)
    assert one == 1


def test_modal_form_of_a_batch_and_where_there_is_none() -> None:
    A = torch.randn(3, 4, 4, dtype=F64)
    batch = ContinuousSystem(A, torch.randn(3, 4, dtype=F64), torch.randn(3, 4, dtype=F64))
    modal, _, condition = modal_form(batch)
    assert modal.A.shape == (3, 4)
    assert condition.shape == (3,)
    assert_same_responses(modal, batch)
    chain = ContinuousSystem(torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64), torch.ones(2, dtype=F64))
    with pytest.raises(InputError, match="no n independent eigenvectors in double precision"):
        modal_form(chain)
    legs = ContinuousSystem(*(z.float() for z in hippo.transition("legs", 8)))
    with pytest.warns(UserWarning, match=r"modal_form: the new coordinates have condition 4.5e\+04, too much for"):
        modal_form(legs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modal_form(ContinuousSystem(*hippo.transition("legs", 8)))


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("kind", ["controllable", "observable"])
@pytest.mark.parametrize("discrete", [False, True])
def test_companion_form(discrete: bool, kind: str, dtype: torch.dtype) -> None:
    m, p = (1, 3) if kind == "controllable" else (2, 1)
    system = random(5, m, p, dtype, discrete=discrete, seed=5)
    companion, T, _ = companion_form(system, kind)  # type: ignore[arg-type]
    assert_same_responses(companion, system)
    torch.testing.assert_close(system.A @ T, T @ companion.A, rtol=1e-8, atol=1e-8)
    A = companion.A if kind == "controllable" else companion.A.mT
    ends = companion.B[:, 0] if kind == "controllable" else companion.C[0]  # type: ignore[index]
    assert torch.equal(A[:-1], torch.eye(5, dtype=dtype)[1:])
    assert torch.equal(ends, torch.eye(5, dtype=dtype)[-1])
    s = 0.3 + 0.7j
    powers = torch.tensor([s**k for k in range(6)], dtype=C128)
    determinant = torch.linalg.det(s * torch.eye(5, dtype=C128) - system.A.to(C128))
    torch.testing.assert_close(powers[5] - (A[-1].to(C128) * powers[:5]).sum(), determinant)


def test_companion_form_holds_the_transfer_function() -> None:
    from scipy import signal

    system = random(4, 1, 1, seed=7)
    siso = ContinuousSystem(system.A, system.B[:, 0], system.C[0])  # type: ignore[index]
    companion, _, _ = companion_form(siso)
    numerator, denominator = signal.ss2tf(siso.A.numpy(), siso.B[:, None].numpy(), siso.C[None].numpy(), [[0.0]])  # type: ignore[index]
    torch.testing.assert_close(-companion.A[-1].flip(0), torch.from_numpy(denominator[1:]), rtol=1e-9, atol=1e-9)
    assert companion.C is not None
    torch.testing.assert_close(companion.C.flip(0), torch.from_numpy(numerator[0, 1:]), rtol=1e-7, atol=1e-7)


def test_companion_form_is_refused_where_there_is_none() -> None:
    two = ContinuousSystem(-torch.ones(2), torch.ones(2), torch.ones(2), diagonal=True)
    with pytest.raises(InputError, match="only 1 of 2 states are controllable"):
        companion_form(two)
    with pytest.raises(InputError, match="only 1 of 2 states are observable"):
        companion_form(two, "observable")
    with pytest.raises(InputError, match="that of one input, and this system has 2"):
        companion_form(random(3, 2, 1))
    with pytest.raises(InputError, match="use 'controllable' or 'observable'"):
        companion_form(two, "jordan")  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="companion_form: responses of the result are off by"):
        companion_form(ContinuousSystem(*hippo.transition("legs", 16)))


def test_companion_form_is_judged_by_its_responses() -> None:
    """Not by the condition of T: four oscillators have a small one and a wrong form, a fast low-pass the other way."""
    parts = []
    for frequency, damping in ((706.0, 0.368), (1.05, 0.157), (1.4, 0.0506), (10.4, 0.0445)):
        parts.append(torch.tensor([[0.0, 1.0], [-(frequency**2), -2 * damping * frequency]], dtype=F64))
    B = torch.stack([torch.stack([torch.zeros((), dtype=F64), -part[1, 0]]) for part in parts]).flatten()
    C = torch.tensor([1.0, 0.0], dtype=F64).repeat(4)
    oscillators = ContinuousSystem(torch.block_diag(*parts), B, C)
    omega = torch.logspace(-2, 4, 200, dtype=F64)

    def error(system: ContinuousSystem, kind: Literal["controllable", "observable"]) -> float:
        found, expected = (s.frequency_response(omega) for s in (companion_form(system, kind).system, system))
        return float((found - expected).abs().max() / expected.abs().max())

    cut = 6283.0
    low_pass = ContinuousSystem(
        torch.tensor([[-2 * cut, -2 * cut**2, -(cut**3)], [1, 0, 0], [0, 1, 0]], dtype=F64),
        torch.tensor([1.0, 0, 0], dtype=F64),
        torch.tensor([0, 0, cut**3], dtype=F64),
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert error(low_pass, "observable") < 1e-9
        assert not told
    with pytest.warns(UserWarning, match="responses of the result are off by"):
        assert error(oscillators, "controllable") > 1e-3


@pytest.mark.parametrize(
    ("measure", "rank"), [("legs", 1), ("legt", 2), ("fourier", 1), ("tlagt", 1), ("fourier_diag", 0)]
)
def test_hippo_is_normal_plus_low_rank(measure: str, rank: int) -> None:
    A, B = hippo.transition(measure, 32)
    form = normal_plus_low_rank(ContinuousSystem(A, B, B))
    assert form.P.shape == form.Q.shape == (rank, 32)
    assert_form(form, A)
    torch.testing.assert_close(form.V @ form.B, B.to(C128))
    assert form.C is not None
    torch.testing.assert_close(form.C @ form.V.mH, B.to(C128))
    if measure == "legs":
        expected = hippo.nplr("legs", 32).Lambda
        found = form.Lambda[form.Lambda.imag > 0]
        torch.testing.assert_close(found[found.imag.argsort()], expected[expected.imag.argsort()])


def assert_form(form: object, A: torch.Tensor) -> None:
    Lambda, P, Q, V = form[:4]  # type: ignore[index]
    scale = float(A.abs().max())
    torch.testing.assert_close(
        V @ (torch.diag(Lambda) - P.mT @ Q.conj()) @ V.mH, A.to(C128), rtol=0, atol=1e-13 * scale * len(A)
    )
    torch.testing.assert_close(V.mH @ V, torch.eye(len(A), dtype=C128), rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_shifts_turns_and_companions(n: int) -> None:
    draw = torch.Generator().manual_seed(n)
    turn = torch.linalg.qr(torch.randn(n, n, dtype=C128, generator=draw)).Q * 0.7
    form = normal_plus_low_rank(ContinuousSystem(turn, turn[:, 0]))
    assert len(form.P) == 0
    assert_form(form, turn)
    one = torch.randn(n, 1, dtype=C128, generator=draw)
    form = normal_plus_low_rank(DiscreteSystem(turn + one @ one.mH, turn[:, 0]), rank=min(2, n))
    assert len(form.P) <= 2
    assert_form(form, turn + one @ one.mH)
    shift = torch.diag(torch.ones(n, dtype=F64), -1)
    form = normal_plus_low_rank(DiscreteSystem(shift, shift[:, 0]))
    assert len(form.P) == 1
    assert_form(form, shift)
    symmetric = torch.randn(n, n, dtype=F64, generator=draw)
    symmetric = symmetric + symmetric.mT
    form = normal_plus_low_rank(ContinuousSystem(symmetric, symmetric[:, 0]))
    assert len(form.P) == 0
    assert_form(form, symmetric)
    identity = 3 * torch.eye(n, dtype=F64)
    assert_form(normal_plus_low_rank(ContinuousSystem(identity, identity[0])), identity)


def test_a_modal_form_has_modes_far_apart_in_any_units() -> None:
    quartz = mass_spring_damper(1.0, 4e30, 2.0)
    modal = modal_form(quartz).system
    torch.testing.assert_close(modal.A.imag.abs(), torch.full((2,), 2e15, dtype=F64))
    omega = torch.tensor([0.0, 1e15, 3e15], dtype=F64)
    torch.testing.assert_close(modal.frequency_response(omega), quartz.frequency_response(omega), rtol=1e-9, atol=0)


def test_what_has_no_such_form_is_refused() -> None:
    system = random(8, 1, 1)
    with pytest.raises(InputError, match=r"rank 4 or less was found: .* need rank 7; allow it with rank="):
        normal_plus_low_rank(system)
    assert_form(normal_plus_low_rank(system, rank=8), system.A)
    for call, message in (
        ({"rank": 9}, "rank must be a whole number from 0 to"),
        ({"rank": True}, "rank must be a whole number"),
        ({"tolerance": 2.0}, "tolerance must be between 0 and 1"),
    ):
        with pytest.raises(InputError, match=message):
            normal_plus_low_rank(system, **call)  # type: ignore[arg-type]
    batch = ContinuousSystem(torch.randn(2, 3, 3), torch.randn(2, 3))
    with pytest.raises(InputError, match=r"takes one system; got a batch \(2,\)"):
        normal_plus_low_rank(batch)


def resonators(n: int, damping: float, dtype: torch.dtype) -> ContinuousSystem:
    """n lightly damped oscillators side by side."""
    blocks = [[[-damping * w, w], [-w, -damping * w]] for w in torch.linspace(1, 2, n).tolist()]
    A = torch.block_diag(*(torch.tensor(block, dtype=dtype) for block in blocks))
    return ContinuousSystem(A, torch.ones(2 * n, dtype=dtype), torch.ones(2 * n, dtype=dtype))


@pytest.mark.parametrize(
    ("n", "damping", "dtype"), [(6, 0.01, torch.float32), (10, 0.01, torch.float32), (10, 1e-9, F64)]
)
def test_companion_form_warns_where_resonances_are_lost(n: int, damping: float, dtype: torch.dtype) -> None:
    with pytest.warns(UserWarning, match="responses of the result are off"):
        companion_form(resonators(n, damping, dtype))


@pytest.mark.parametrize("kind", ["controllable", "observable"])
def test_companion_form_of_one_state(kind: Any) -> None:
    for dtype in (torch.float32, torch.float64, torch.complex128):  # rounding to float32 leaves an error to look at
        one = torch.ones(1, dtype=dtype)
        found = companion_form(DiscreteSystem(0.99 * one[None], 0.7 * one, 0.3 * one), kind)
        assert complex(found.system.A) == pytest.approx(0.99)
        assert found.system.C is not None
        assert complex(found.system.B * found.system.C) == pytest.approx(0.21)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("system_type", [ContinuousSystem, DiscreteSystem])
def test_a_batch_as_large_as_its_systems(system_type: Any, single: bool, n: int) -> None:
    """n systems of n states and n inputs, or one: each is as it is alone."""
    g = torch.Generator().manual_seed(n)
    A = 0.3 * torch.randn(n, n, n, dtype=torch.float64, generator=g) / n
    A = A - torch.eye(n, dtype=torch.float64) * (0.5 if system_type is DiscreteSystem else 2.0)
    B = torch.randn(n, n, *[] if single else [n], dtype=torch.float64, generator=g)
    C, omega = torch.randn(n, n, dtype=torch.float64, generator=g), torch.linspace(0, 1, n, dtype=torch.float64)
    together = system_type(A, B, C)
    for i in range(n):
        alone = system_type(A[i], B[i], C[i])
        pairs = [(s.frequency_response(omega) for s in (together, alone))]
        pairs += [(controllability_gramian(s) for s in (together, alone))]
        pairs += [(balanced_truncation(s, 1).system.poles() for s in (together, alone))]
        pairs += [(modal_form(s).system.frequency_response(omega) for s in (together, alone))]
        if system_type is ContinuousSystem:
            for rule in ("zoh", "foh", "bilinear", "backward_euler", "dirac"):
                pairs += [(discretize(s, 0.1, rule).B for s in (together, alone))]
        for whole, part in pairs:
            torch.testing.assert_close(whole[i], part, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("system_type", [ContinuousSystem, DiscreteSystem])
def test_a_batch_of_none(system_type: Any, single: bool, diagonal: bool) -> None:
    A = torch.zeros(0, 2) if diagonal else torch.zeros(0, 2, 2)
    given = system_type(A, torch.zeros(0, 2, *[] if single else [3]), torch.zeros(0, 2), diagonal=diagonal)
    assert controllability_gramian(given).shape == observability_gramian(given).shape == (0, 2, 2)
    assert hankel_singular_values(given).shape == (0, 2)
    reduced, hankel, bound = balanced_truncation(given, 1)
    assert (reduced.A.shape, hankel.shape, bound.shape) == ((0, 1, 1), (0, 2), (0,))
    modal, T, condition = modal_form(given)
    assert (modal.A.shape, T.shape, condition.shape) == ((0, 2), (0, 2, 2), (0,))
    if single:
        assert companion_form(given).system.A.shape == (0, 2, 2)
