"""The rules of discretisation, against SciPy and against 50-digit arithmetic.

Relative errors: of diagonal systems entry by entry; of dense ones in the Frobenius norm, ‖ours − exact‖ / ‖exact‖,
A_bar and B_bar each by itself.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from discretised import F64, options, relative, stable, stiff, tensor
from scipy.signal import cont2discrete

from statewise.systems import METHODS, discretize_dense, discretize_diagonal
from statewise.systems.double_word import DoubleWord, exact_product
from statewise.systems.exponential import expm1, phi_1, phi_2

IN_SCIPY = {"zoh": "zoh", "bilinear": "bilinear", "euler": "euler", "backward_euler": "backward_diff", "foh": "foh"}


ALPHA = {"gbt": 0.3, "euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}


def legs(n: int) -> np.ndarray:
    i = np.arange(n)
    root = np.sqrt(2 * i + 1.0)
    return -np.tril(np.outer(root, root), -1) - np.diag(i + 1.0)


def exact_diagonal(a: complex, dt: float, method: str) -> tuple[complex, complex]:
    """A_bar and B_bar for B = 1, in 50 digits, from the formulas that invert A."""
    with mpmath.workdps(80):
        a, dt = mpmath.mpmathify(a), mpmath.mpf(dt)
        z = dt * a
        if method in ALPHA:
            alpha = mpmath.mpf(ALPHA[method])
            return complex((1 + (1 - alpha) * z) / (1 - alpha * z)), complex(dt / (1 - alpha * z))
        e = mpmath.exp(z)
        held = (e - 1) / a if a else dt
        gain = {"zoh": held, "foh": held**2 / dt, "dirac": 1, "mamba": dt}[method]
        return complex(e), complex(gain)


def exact_dense(A: np.ndarray, B: np.ndarray, dt: float, method: str) -> tuple[np.ndarray, np.ndarray]:
    """A_bar and B_bar to 50 digits at least, by Taylor series and squaring with 120."""
    n, m = A.shape[0], B.shape[1]
    with mpmath.workdps(120):
        if method in ALPHA:
            alpha, X = mpmath.mpf(ALPHA[method]), mpmath.matrix(A) * mpmath.mpf(dt)
            inverse = (mpmath.eye(n) - alpha * X) ** -1
            A_bar, B_bar = inverse * (mpmath.eye(n) + (1 - alpha) * X), inverse * mpmath.matrix(B) * mpmath.mpf(dt)
            return to_numpy(A_bar), to_numpy(B_bar)
        X = mpmath.zeros(n + 2 * m)
        X[:n, :n], X[:n, n : n + m] = mpmath.matrix(A) * mpmath.mpf(dt), mpmath.matrix(B) * mpmath.mpf(dt)
        X[n : n + m, n + m :] = mpmath.eye(m)
        n_squarings = max(0, int(mpmath.log(mpmath.mnorm(X, 1) + 1, 2)) + 12)
        X = X / mpmath.mpf(2) ** n_squarings
        result = term = mpmath.eye(n + 2 * m)
        for k in range(1, 32):  # 2^-12k / k! is below 1e-120 from there on
            term = term * X / k
            result = result + term
        for _ in range(n_squarings):
            result = result * result
        A_bar, whole, ramp = result[:n, :n], result[:n, n : n + m], result[:n, n + m :]
        B_bar = whole if method == "zoh" else whole - ramp + A_bar * ramp
        return to_numpy(A_bar), to_numpy(B_bar)


def to_numpy(matrix: Any) -> np.ndarray:
    return np.array(matrix.tolist(), dtype=float)


def in_scipy(A: np.ndarray, B: np.ndarray, dt: float, method: str) -> tuple[np.ndarray, np.ndarray]:
    system = (A, B, np.zeros((1, len(A))), np.zeros((1, B.shape[1])))
    if method == "gbt":
        return cont2discrete(system, dt, "gbt", alpha=0.3)[:2]
    return cont2discrete(system, dt, IN_SCIPY[method])[:2]


@pytest.mark.parametrize("method", [*IN_SCIPY, "gbt"])
def test_a_thousand_dense_systems_as_scipy(method: str) -> None:
    rng = np.random.default_rng(0)
    worst = 0.0
    for n in range(1, 9):
        A, B, dt = stable(rng, 125, n), rng.standard_normal((125, n, 2)), 10.0 ** rng.uniform(-12, 0.5, 125)
        A_bar, B_bar = discretize_dense(tensor(A), tensor(B), tensor(dt), **options(method))
        for i in range(125):
            theirs = in_scipy(A[i], B[i], dt[i], method)
            worst = max(worst, relative(A_bar[i], theirs[0]), relative(B_bar[i], theirs[1]))
    assert worst <= 1e-11


@pytest.mark.parametrize("method", [*IN_SCIPY, "gbt"])
def test_a_thousand_diagonal_systems_as_scipy(method: str) -> None:
    """SciPy in the dense form, so in the norm; entry by entry comes below."""
    rng = np.random.default_rng(1)
    A, B, dt = (
        -(10.0 ** rng.uniform(-3, 2, (1000, 4))),
        rng.standard_normal((1000, 4)),
        10.0 ** rng.uniform(-6, 1, 1000),
    )
    A_bar, B_bar = discretize_diagonal(tensor(A), tensor(B), tensor(dt), **options(method))
    worst = 0.0
    for i in range(1000):
        theirs = in_scipy(np.diag(A[i]), B[i, :, None], dt[i], method)
        worst = max(worst, relative(A_bar[i], np.diag(theirs[0])), relative(B_bar[i], theirs[1][:, 0]))
    assert worst <= 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_diagonal_to_50_digits_entry_by_entry(method: str, kind: str) -> None:
    """Poles from -1e6 to -1e-6 and 0, frequencies to 1e6, dt from 1e-12 to 50."""
    rng = np.random.default_rng(2)
    poles = [0.0, -1e-6, -1e6, -1e-300, *(-(10.0 ** rng.uniform(-6, 6, 26)))]
    frequencies = [0.0, 1e-6, -1e6, 3.0, *(10.0 ** rng.uniform(-6, 6, 26) * rng.choice([-1, 1], 26))]
    A = np.array(poles) + (1j * rng.permutation(frequencies) if kind == "complex" else 0)
    dt = np.array([1e-12, 1e-3, 0.7, 1.0, 50.0, *(10.0 ** rng.uniform(-12, 1.6, 5))])
    dtype = torch.complex128 if kind == "complex" else F64
    A_bar, B_bar = discretize_diagonal(
        tensor(A, dtype), torch.ones(30, dtype=dtype), tensor(dt), **options(method)
    )  # (10, 30)
    for k, step in enumerate(dt):
        for i, a in enumerate(A):
            for ours, exact in zip((A_bar[k, i], B_bar[k, i]), exact_diagonal(a, step, method)):
                error = abs(complex(ours) - exact)
                assert error <= 1e-12 * abs(exact) or abs(exact) < 1e-290, (a, step, complex(ours), exact)


def extreme_systems() -> list[tuple[str, np.ndarray, float]]:
    rng = np.random.default_rng(3)
    systems: list[tuple[str, np.ndarray, float]] = []
    for dt in (1e-12, 1e-3, 1.0, 50.0):
        systems += [(f"random {dt}", stable(rng, 1, 3)[0], dt) for _ in range(3)]
        systems += [(f"stiff {dt}", stiff(rng, n, False), dt) for n in (2, 3, 3, 4)]
        systems += [(f"stiff, normal {dt}", stiff(rng, n, True), dt) for n in (2, 3, 3, 4)]
        systems += [(f"zero {dt}", np.zeros((3, 3)), dt), (f"integrators {dt}", np.diag([1.0, 1.0], 1), dt)]
    return [
        *systems,
        ("legs", legs(6), 50.0),
        ("legs", legs(6), 1.0),
        ("fast only", -1e6 * np.eye(2) + np.eye(2, k=1), 1.0),
        ("far from normal", -np.eye(3) + 1e6 * np.eye(3, k=1), 1.0),
    ]


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")  # the matrices are ill-conditioned, as they should be
@pytest.mark.parametrize("method", ["zoh", "foh", "bilinear", "backward_euler", "gbt"])
def test_dense_to_50_digits_and_not_worse_than_scipy(method: str) -> None:
    """Every system, stiff ones too, is within 3e-14 of 50 digits, and no worse than SciPy or 1e-15."""
    rng = np.random.default_rng(4)
    for name, A, dt in extreme_systems():
        B = rng.standard_normal((len(A), 1))
        exact = exact_dense(A, B, dt, method)
        ours = discretize_dense(tensor(A), tensor(B), dt, **options(method))
        scipy_s = in_scipy(A, B, dt, method)
        for mine, theirs, truth in zip(ours, scipy_s, exact):
            error = relative(mine, truth)
            assert error <= 3e-14, (name, error)
            assert error <= max(relative(tensor(theirs), truth), 1e-15), (name, error)


@pytest.mark.parametrize("method", METHODS)
def test_complex_dense_systems_in_another_basis(method: str) -> None:
    """Q Lambda Q* with stiff and turning poles: the rules commute with Q."""
    rng = np.random.default_rng(10)
    poles = tensor([-1e-6 + 1e3j, -1e4, -1 + 1j, -30 - 2j], torch.complex128)
    Q = tensor(np.linalg.qr(rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4)))[0], torch.complex128)
    for dt in (1e-6, 1e-2, 1.0):
        a_bar, b_bar = discretize_diagonal(poles, torch.ones(4, dtype=torch.complex128), dt, **options(method))
        A_bar, B_bar = discretize_dense(Q @ torch.diag(poles) @ Q.mH, Q.sum(-1), dt, **options(method))
        assert relative(A_bar, (Q @ torch.diag(a_bar) @ Q.mH).numpy()) < 1e-11  # Q Lambda Q* itself is rounded
        assert relative(B_bar, (Q @ b_bar).numpy()) < 1e-11


def test_a_large_hippo_matrix_doubles_itself() -> None:
    """LegS with N = 64: a step of 50 is a step of 25 taken twice, and the states settle at -A^-1 B."""
    A, B = tensor(legs(64)), torch.sqrt(2 * torch.arange(64, dtype=F64) + 1)
    (once, late), (half, early) = (discretize_dense(A, B, dt) for dt in (50.0, 25.0))
    assert relative(once, (half @ half).numpy()) < 1e-11
    assert relative(late, (half @ early + early).numpy()) < 1e-14
    assert relative(late, np.linalg.solve(-A.numpy(), B.numpy())) < 1e-12


def test_float32_is_good_to_its_last_places() -> None:
    rng = np.random.default_rng(5)
    A, B, dt = tensor(stable(rng, 20, 4)), torch.randn(20, 4, dtype=F64), torch.rand(20, dtype=F64) + 0.01
    for method in METHODS:
        exact = discretize_dense(A.float().double(), B.float().double(), dt.float().double(), **options(method))
        ours = discretize_dense(A.float(), B.float(), dt.float(), **options(method))
        assert all(z.dtype == torch.float32 for z in ours)
        assert max(relative(z.double(), e.numpy()) for z, e in zip(ours, exact)) < 2e-6
        poles, b = -torch.rand(7) * 10, torch.randn(7)
        fine = discretize_diagonal(poles.double(), b.double(), dt.float().double(), **options(method))
        for z, e in zip(discretize_diagonal(poles, b, dt.float(), **options(method)), fine):
            assert z.dtype == torch.float32
            assert torch.allclose(z.double(), e, rtol=1e-6, atol=0)


def test_phi_and_its_derivatives_to_50_digits() -> None:
    """phi_1, its first and second derivative, and phi_2, on both sides of the border of the series."""
    rng = np.random.default_rng(6)
    size = 10.0 ** np.concatenate([rng.uniform(-12, 7, 60), rng.uniform(-0.01, 0.01, 20), rng.uniform(-1, 1, 40)])
    turn = rng.uniform(np.pi / 2, 3 * np.pi / 2, len(size))
    for values in (np.concatenate([[0], -size, [0.5, 2.0, 30.0]]), np.concatenate([[0], size * np.exp(1j * turn)])):
        z = torch.tensor(values, requires_grad=True)
        # for a holomorphic f, autograd gives the conjugate of f'
        first = torch.autograd.grad(phi_1(z).real.sum() if z.is_complex() else phi_1(z).sum(), z, create_graph=True)[0]
        second = torch.autograd.grad(first.real.sum() if z.is_complex() else first.sum(), z)[0]
        ours = [phi_1(z), first.conj(), second.conj(), phi_2(z)]
        for i, point in enumerate(values):
            with mpmath.workdps(120):
                p = mpmath.mpmathify(point)
                e = mpmath.exp(p)
                exact = (
                    ((e - 1) / p, (e * (p - 1) + 1) / p**2, (e * (p**2 - 2 * p + 2) - 2) / p**3, (e - 1 - p) / p**2)
                    if p
                    else (mpmath.mpf(1), mpmath.mpf(1) / 2, mpmath.mpf(1) / 3, mpmath.mpf(1) / 2)
                )
            for order, (mine, truth) in enumerate(zip(ours, exact)):
                assert abs(complex(mine[i].detach()) - complex(truth)) <= 2e-14 * abs(complex(truth)), (order, point)


def test_complex_expm1_does_not_cancel() -> None:
    for point in (1e-20 + 1e-18j, -1e-9 + 1e-9j, 2j * np.pi, 1e-8j, -745 + 1j, -3 + 1e6j):
        with mpmath.workdps(60):
            truth = complex(mpmath.expm1(mpmath.mpmathify(point)))
        assert abs(complex(expm1(tensor(point, torch.complex128))) - truth) <= 1e-15 * abs(truth)


@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_double_words_keep_what_one_word_loses(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(9, 9, dtype=dtype, generator=generator) for _ in range(2))
    product = DoubleWord(A, torch.zeros_like(A)) @ DoubleWord(B, torch.zeros_like(B))
    for i, j in ((0, 0), (3, 8)):
        with mpmath.workdps(60):
            exact = mpmath.fsum(
                mpmath.mpmathify(x) * mpmath.mpmathify(y) for x, y in zip(A[i].tolist(), B[:, j].tolist())
            )
            lost = exact - mpmath.mpmathify(product.high[i, j].item()) - mpmath.mpmathify(product.low[i, j].item())
            assert abs(lost) < 1e-20
    third = exact_product(tensor(0.1), A)
    assert abs(mpmath.mpmathify(third.high[0, 0].item()) - mpmath.mpf(0.1) * mpmath.mpmathify(A[0, 0].item())) < 1e-15
    huge = exact_product(tensor(2.0), torch.full((2,), 1e305, dtype=dtype))
    assert huge.low.abs().max() == 0
