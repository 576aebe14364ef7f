"""HiPPO's matrices against the closed formulas, their normal-plus-low-rank forms, and the initialisations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo import MEASURES, diagonal, dplr, lmu, low_rank, nplr, random_transition, transition

NORMAL = ("legs", "legt", "lagt", "tlagt", "fourier", "fourier_diag")
REAL_PART = {"legs": -0.5, "legt": 0.0, "lagt": 0.0, "tlagt": -0.5, "fourier": 0.0, "fourier_diag": -0.5}


def by_formula(measure: str, n: int) -> tuple[Tensor, Tensor]:
    """Entry by entry, as the papers print them, with the sign that x' = A x + B u has."""
    A = torch.zeros(n, n, dtype=torch.float64)
    B = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        if measure in ("legs", "legt"):
            B[i] = math.sqrt(2 * i + 1)
        elif measure in ("lagt", "tlagt", "glagt"):
            B[i] = 1.0
        elif measure == "lmu":
            B[i] = (2 * i + 1) * (-1) ** i
        else:
            B[i] = 1.0 if i == 0 else math.sqrt(2) if i % 2 == 0 else 0.0
        for k in range(n):
            root = math.sqrt((2 * i + 1) * (2 * k + 1))
            if measure == "legs":
                A[i, k] = -root if i > k else -(i + 1) if i == k else 0.0
            elif measure == "legt":
                A[i, k] = -root * (1 if k <= i else (-1) ** (i - k))
            elif measure == "lagt":
                A[i, k] = -1.0 if i > k else -0.5 if i == k else 0.0
            elif measure in ("tlagt", "glagt"):
                A[i, k] = -1.0 if i >= k else 0.0
            elif measure == "lmu":
                A[i, k] = (2 * i + 1) * (-1 if i < k else (-1) ** (i - k + 1))
            else:
                # cos' = -w sin and sin' = w cos for the pair of one frequency.
                w = (i // 2) * (math.pi if measure == "fourier" else 2 * math.pi)
                if i // 2 == k // 2 and i != k:
                    A[i, k] = w if i > k else -w
                both = 0 if i % 2 or k % 2 else (1 if i == 0 else math.sqrt(2)) * (1 if k == 0 else math.sqrt(2))
                A[i, k] -= both if measure == "fourier" else 0.5 * (i == k)
    return A, B


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("n", [2, 6, 30])
def test_the_matrices_are_the_formulas(measure: str, n: int) -> None:
    for ours, formula in zip(transition(measure, n), by_formula(measure, n)):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, formula, rtol=1e-14, atol=1e-14)


def test_one_state() -> None:
    for measure in ("legs", "legt", "lagt", "tlagt", "glagt", "lmu"):
        A, B = transition(measure, 1)
        assert A.item() == (-0.5 if measure == "lagt" else -1.0)
        assert B.item() == 1.0


def test_options_scale_the_matrices() -> None:
    for measure in MEASURES:
        A, B = transition(measure, 4)
        published = 2.0 if measure == "fourier" else 1.0
        slow = transition(measure, 4, theta=5.0)
        torch.testing.assert_close(slow[0], A * published / 5)
        torch.testing.assert_close(slow[1], B * published / 5)
    for half, whole in zip(transition("legt", 4, halved=True), transition("legt", 4)):
        torch.testing.assert_close(half, whole / 2)
    torch.testing.assert_close(transition("lagt", 4, beta=3.0)[1], torch.full((4,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(transition("tlagt", 4, beta=0.4)[0].diagonal(), torch.full((4,), -0.7).double())
    for a, b in zip(lmu(6, 20.0), transition("lmu", 6, theta=20.0)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("n", [1, 5, 64])
def test_lmu_is_similar_to_legt(n: int) -> None:
    A, B = lmu(n, 7.0)
    i = torch.arange(n, dtype=torch.float64)
    S = (-1.0) ** i / (2 * i + 1).sqrt()
    legt_A, legt_B = transition("legt", n, theta=7.0)
    torch.testing.assert_close(S[:, None] * A / S, legt_A, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(S * B, legt_B, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("measure", NORMAL)
@pytest.mark.parametrize("n", [2, 64, 256])
def test_low_rank_makes_it_normal(measure: str, n: int) -> None:
    A, _ = transition(measure, n)
    P = low_rank(measure, n)
    normal = A + P.T @ P
    scale = normal.norm() ** 2 + 1
    assert (normal @ normal.T - normal.T @ normal).norm() <= 1e-13 * scale
    # A real part times the identity plus a skew-symmetric matrix.
    expected = 2 * REAL_PART[measure] * torch.eye(n, dtype=torch.float64)
    torch.testing.assert_close(normal + normal.T, expected, rtol=0, atol=1e-12 * float(A.abs().max()))


def whole(half: Tensor) -> Tensor:
    return torch.cat([half, half.conj()], dim=-1)


@pytest.mark.parametrize("measure", NORMAL)
@pytest.mark.parametrize(("n", "bound"), [(2, 1e-14), (64, 1e-13), (256, 1e-12)])
def test_nplr_gives_the_matrices_back(measure: str, n: int, bound: float) -> None:
    A, B = transition(measure, n)
    form = nplr(measure, n)
    V, P = whole(form.V), whole(form.P)
    assert form.Lambda.shape == form.B.shape == (n // 2,)
    assert (V.mH @ V - torch.eye(n)).abs().max() <= 1e-14 * n
    again = V @ (torch.diag(whole(form.Lambda)) - P.T @ P.conj()) @ V.mH
    assert (again - A).abs().max() <= bound * A.abs().max()
    assert (V @ whole(form.B) - B).abs().max() <= bound * B.abs().max()
    # Canonical: frequencies ascend and are not negative, B is real and positive.
    assert torch.equal(form.Lambda.real, torch.full((n // 2,), REAL_PART[measure], dtype=torch.float64))
    assert (form.Lambda.imag.diff() > 0).all()
    assert form.Lambda.imag[0] >= 0
    assert (form.B.real > 0).all()
    assert form.B.imag.abs().max() <= bound * form.B.real.max()


@pytest.mark.parametrize("measure", NORMAL)
def test_half_the_pairs_run_the_system(measure: str) -> None:
    """z' = Lambda z - P^T 2 Re(conj(P) z) + B u with x = 2 Re(V z) is x' = A x + B u."""
    A, B = transition(measure, 12, theta=3.0)
    Lambda, P, B_half, V = nplr(measure, 12, theta=3.0)
    x = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = V.mH @ x.to(V.dtype)
    torch.testing.assert_close(2 * (V @ z).real, x)
    dz = Lambda * z - P.T @ (2 * (P.conj() @ z).real).to(V.dtype) + B_half * 0.7
    torch.testing.assert_close(2 * (V @ dz).real, A @ x + B * 0.7, rtol=1e-12, atol=1e-12)


def test_nplr_has_the_options_of_the_matrices() -> None:
    for options in ({"theta": 4.0}, {"halved": True}):
        A, B = transition("legt", 8, **options)  # type: ignore[arg-type]
        form = nplr("legt", 8, 3, **options)  # type: ignore[arg-type]
        P = low_rank("legt", 8, 3, **options)  # type: ignore[arg-type]
        V = whole(form.V)
        assert form.P.shape == (3, 4)
        torch.testing.assert_close(V @ torch.diag(whole(form.Lambda)) @ V.mH, (A + P.T @ P).to(V.dtype))
        torch.testing.assert_close(2 * (form.V @ form.B).real, B)
    torch.testing.assert_close(nplr("lagt", 4, beta=-2.0).B, 2 * nplr("lagt", 4).B)
    A, _ = transition("tlagt", 8, theta=3.0, beta=0.2)
    form = nplr("tlagt", 8, theta=3.0, beta=0.2)
    V, P = whole(form.V), whole(form.P)
    torch.testing.assert_close(V @ (torch.diag(whole(form.Lambda)) - P.T @ P.conj()) @ V.mH, A.to(V.dtype))


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.01), (-0.7, 2.0)])
def test_generalised_laguerre_is_the_published_formula(alpha: float, beta: float) -> None:
    n = 7
    A, B = transition("glagt", n, alpha=alpha, beta=beta)
    length = [math.sqrt(math.gamma(i + alpha + 1) / math.factorial(i)) for i in range(n)]
    mass = math.gamma(1 - alpha) * beta ** (alpha - 1)
    for i in range(n):
        binomial = math.gamma(i + alpha + 1) / math.factorial(i) / math.gamma(alpha + 1)
        assert B[i].item() == pytest.approx(binomial / length[i] / math.sqrt(mass), rel=1e-12)
        for k in range(n):
            entry = -(1 + beta) / 2 if i == k else -length[k] / length[i] if i > k else 0.0
            assert A[i, k].item() == pytest.approx(entry, rel=1e-12)


@pytest.mark.parametrize("s", [0.3 + 0j, 5.0 + 0j, 0.5 + 2j])
def test_the_diagonal_part_with_half_of_b_becomes_legs(s: complex) -> None:
    """S4D, theorem 3: its transfer function tends to that of LegS as n grows; with the whole of B, to twice that."""
    errors = []
    for n in (16, 64, 256):
        A, B = transition("legs", n)
        form = nplr("legs", n)
        diagonal_part = (whole(form.V) @ (whole(form.B) / 2 / (s - whole(form.Lambda))))[:4]
        legs = torch.linalg.solve(s * torch.eye(n, dtype=torch.complex128) - A, B.to(torch.complex128))[:4]
        errors.append(float((diagonal_part - legs).norm() / legs.norm()))
    assert errors[2] < 1e-4
    assert errors[2] < errors[0] / 50 or errors[0] < 1e-12


def test_ranks() -> None:
    least = {"legs": 1, "legt": 2, "lagt": 1, "tlagt": 1, "fourier": 1, "fourier_diag": 0}
    for measure, rank in least.items():
        assert low_rank(measure, 6).shape == (rank, 6)
        more = low_rank(measure, 6, rank + 2)
        assert more.shape == (rank + 2, 6)
        assert torch.equal(more[:rank], low_rank(measure, 6))
        assert not more[rank:].any()
        assert nplr(measure, 6, rank + 2).P.shape == (rank + 2, 3)
        with pytest.raises(InputError, match=f"{measure} needs a low-rank correction of rank {rank} or more"):
            low_rank(measure, 6, rank - 1)


def test_diagonal_initialisations() -> None:
    n = 16
    for k in range(n // 2):
        expected = {
            "lin": math.pi * k,
            "inv": n / math.pi * (n / (2 * k + 1) - 1),
            "inv2": n / math.pi * (n / (k + 1) - 1),
            "quad": (1 + 2 * k) ** 2 / math.pi,
            "fourier": math.pi * k,
            "legs": float(nplr("legs", n).Lambda[k].imag),
            "legt": float(nplr("legt", n).Lambda[k].imag) / 2,  # S4 halves LegT
        }
        for name, omega in expected.items():
            Lambda, B = diagonal(name, n)
            assert Lambda.dtype == B.dtype == torch.complex128
            assert Lambda[k].real.item() == -0.5
            assert Lambda[k].imag.item() == pytest.approx(omega, rel=1e-14, abs=1e-14)
            assert torch.equal(B, torch.ones_like(B))
    Lambda, B = diagonal("real", 5)
    assert Lambda.tolist() == [-1, -2, -3, -4, -5]
    assert B.dtype == torch.float64


def test_published_values_of_s4d_legs() -> None:
    """The frequencies of LegS are close to those of S4D-Inv at the top (S4D, conjecture 5)."""
    legs, inverse = (diagonal(name, 64)[0].imag.max() for name in ("legs", "inv"))
    assert 0.9 < legs / inverse < 1.1


def test_dplr_initialisations() -> None:
    for name in NORMAL:
        Lambda, P, B = dplr(name, 8, 2)
        form = nplr(name, 8, 2, halved=name == "legt")
        for ours, expected in zip((Lambda, P, B), (form.Lambda, form.P, form.B)):
            assert torch.equal(ours, expected)
    assert torch.equal(dplr("legt", 8, halved=False)[0], nplr("legt", 8).Lambda)
    assert dplr("legs", 8)[1].shape == (1, 4)


def test_random_initialisations_are_seeded_and_stable() -> None:
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    Lambda, P, B = dplr("random", 4000, 2, generator=seeded())
    assert torch.equal(Lambda, dplr("random", 4000, 2, generator=seeded())[0])
    assert torch.equal(Lambda, diagonal("random", 4000, generator=seeded())[0])
    assert not torch.equal(Lambda, diagonal("random", 4000, generator=torch.Generator().manual_seed(4))[0])
    assert (Lambda.real == -0.5).all()
    logarithm = Lambda.imag.log()
    assert abs(float(logarithm.mean())) < 0.1
    assert abs(float(logarithm.std()) - 1) < 0.05
    assert abs(float(P.abs().square().mean()) - 1) < 0.1
    assert abs(float(B.abs().square().mean()) - 1) < 0.1
    small, P, _ = dplr("random", 16, 2, generator=seeded())
    dense = torch.diag(whole(small)) - whole(P).T @ whole(P).conj()
    assert torch.linalg.eigvals(dense).real.max() <= -0.5 + 1e-12
    assert dplr("random", 16)[1].shape == (1, 8)


def test_random_transition() -> None:
    A, B = random_transition(64, torch.Generator().manual_seed(0))
    again = random_transition(64, torch.Generator().manual_seed(0))
    assert torch.equal(A, again[0])
    assert torch.equal(B, again[1])
    eigenvalues = torch.linalg.eigvals(A)
    legs = torch.linalg.eigvals(transition("legs", 12)[0]).real.max()
    assert float(eigenvalues.real.max()) == pytest.approx(float(legs), abs=1e-6)
    A, _ = random_transition(256, torch.Generator().manual_seed(0), abscissa=-0.25, radius=8.0)
    eigenvalues = torch.linalg.eigvals(A)
    assert float(eigenvalues.real.max()) == pytest.approx(-0.25, abs=1e-6)
    assert 7 < float((eigenvalues - eigenvalues.mean()).abs().max()) < 9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: transition("legz", 4), "no measure 'legz'; use one of legs"),
        (lambda: transition("legs", 0), "whole number n >= 1"),
        (lambda: transition("legs", 2.0), "whole number n >= 1"),  # type: ignore[arg-type]
        (lambda: transition("fourier", 5), "fourier with n=5 .* use an even n"),
        (lambda: transition("legt", 4, theta=0.0), "theta is a length of time"),
        (lambda: transition("legt", 4, theta=math.nan), "theta is a length of time"),
        (lambda: transition("legt", 4, theta=1.0, halved=True), "give only one"),
        (lambda: transition("legs", 4, halved=True), "S4's variant of legt"),
        (lambda: transition("legs", 4, beta=2.0), "beta is of lagt, tlagt and glagt; legs has none"),
        (lambda: transition("lagt", 4, beta=0.0), "other than zero"),
        (lambda: transition("tlagt", 4, beta=-1.0), "beta of tlagt, .* must be above -1; got -1.0"),
        (lambda: transition("glagt", 4, beta=0.0), "beta of glagt, .* must be above 0; got 0.0"),
        (lambda: transition("glagt", 4, alpha=1.0), "between -1 and 1"),
        (lambda: transition("lagt", 4, alpha=0.5), "alpha is of glagt; lagt has none"),
        (lambda: nplr("glagt", 4), "use tlagt, which it is at alpha=0"),
        (lambda: nplr("legs", 5), "use an even n"),
        (lambda: nplr("lmu", 4), "use legt, the same memory"),
        (lambda: low_rank("legt", 4, 1), "rank 2 or more, got rank 1"),
        (lambda: low_rank("legs", 4, 1.0), "rank 1 or more"),  # type: ignore[arg-type]
        (lambda: diagonal("lmu", 4), "S4D has no initialisation 'lmu'; use one of legs"),
        (lambda: diagonal("lin", 7), "use an even n"),
        (lambda: diagonal("real", 0), "n >= 1"),
        (lambda: dplr("lin", 4), "S4 has no initialisation 'lin'"),
        (lambda: dplr("random", 4, -1), "rank of 0 or more"),
        (lambda: dplr("legt", 4, 1), "rank 2 or more"),
        (lambda: random_transition(4, abscissa=0.0), "abscissa < 0"),
        (lambda: random_transition(-1), "n >= 1"),
    ],
)
def test_what_cannot_be_is_one_clear_error(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
