"""Discretisation where one word is not enough: far from normal dense systems, and long phases in float32."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete

from statewise.errors import InputError
from statewise.systems import METHODS, discretize_dense, discretize_diagonal
from statewise.systems.double_word import DoubleWord
from statewise.systems.elimination import eliminate

ALPHA = {"bilinear": 0.5, "backward_euler": 1.0, "gbt": 0.3}
IN_SCIPY = {"bilinear": "bilinear", "backward_euler": "backward_diff", "gbt": "gbt"}


def alpha(method: str) -> float | None:
    return 0.3 if method == "gbt" else None


def exact(A: np.ndarray, dt: float, method: str) -> tuple[np.ndarray, np.ndarray]:
    """A_bar and B_bar for B = 1, by 80 digits."""
    with mpmath.workdps(80):
        X, identity, a = mpmath.matrix(A) * mpmath.mpf(dt), mpmath.eye(len(A)), mpmath.mpf(ALPHA[method])
        inverse = (identity - a * X) ** -1
        parts = inverse * (identity + (1 - a) * X), inverse * mpmath.ones(len(A), 1) * mpmath.mpf(dt)
    return tuple(np.array(part.tolist(), dtype=float) for part in parts)  # type: ignore[return-value]


def relative(ours: Any, truth: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(ours) - truth) / np.linalg.norm(truth))


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("method", ALPHA)
@pytest.mark.parametrize("size", [1e4, 1e5, 1e6])
def test_stiff_and_far_from_normal(size: float, method: str) -> None:
    """Triangular and in another basis: at most 1e-12 from 80 digits (SciPy is 1e-11 off, or gives up)."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        T = np.triu(rng.standard_normal((5, 5)) * size, 1) + np.diag(-(10.0 ** np.linspace(-6, 6, 5)))
        Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
        for A in (T, Q @ T @ Q.T):
            for dt in (1e-3, 50.0) if A is T else (50.0,):
                truth = exact(A, dt, method)
                ours = discretize_dense(
                    torch.tensor(A), torch.ones(5, 1, dtype=torch.float64), dt, method, alpha=alpha(method)
                )
                system = (A, np.ones((5, 1)), np.zeros((1, 5)), np.zeros((1, 1)))
                try:
                    theirs = cont2discrete(system, dt, IN_SCIPY[method], alpha=alpha(method))[:2]
                except np.linalg.LinAlgError:
                    theirs = (np.inf * truth[0], np.inf * truth[1])
                for mine, scipy_s, right in zip(ours, theirs, truth):
                    error = relative(mine, right)
                    assert error <= 1e-12
                    assert error <= max(1e-14, relative(scipy_s, right)), (seed, dt)


def test_the_gradient_of_such_a_system_is_that_of_the_plain_solve() -> None:
    T = torch.triu(1e6 * torch.ones(3, 3, dtype=torch.float64), 1) - torch.diag(torch.tensor([1e-6, 1.0, 1e6]).double())
    T.requires_grad_()
    A_bar, _ = discretize_dense(T, torch.ones(3, dtype=torch.float64), 1.0, "bilinear")
    plain = torch.linalg.solve(torch.eye(3) - T / 2, torch.eye(3) + T / 2)
    weight = torch.arange(9, dtype=torch.float64).reshape(3, 3)
    ours, expected = (torch.autograd.grad((weight * m).sum(), T)[0] for m in (A_bar, plain))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_elimination_solves_what_one_word_cannot(dtype: torch.dtype) -> None:
    """A Hilbert matrix of condition 1e18, and a batch that needs its rows exchanged."""
    i = torch.arange(13, dtype=torch.float64)
    hilbert = (1 / (i + i[:, None] + 1)).to(dtype)[None]
    right = torch.ones(1, 13, 1, dtype=dtype) * (1j if dtype.is_complex else 1)
    got = eliminate(*(DoubleWord(m, torch.zeros_like(m)) for m in (hilbert, right)))
    with mpmath.workdps(60):
        truth = mpmath.lu_solve(mpmath.matrix(hilbert[0].real.tolist()), mpmath.ones(13, 1))
        truth_numbers = torch.tensor([float(x) for x in truth], dtype=torch.float64)
    torch.testing.assert_close((got / right[:, :1])[0, :, 0].real, truth_numbers, rtol=1e-11, atol=0)
    swap = torch.tensor([[[0.0, 2.0], [3.0, 1.0]], [[1.0, 5.0], [4.0, 0.0]]], dtype=dtype)
    inverse = eliminate(
        *(DoubleWord(m, torch.zeros_like(m)) for m in (swap, torch.eye(2, dtype=dtype).expand(2, 2, 2)))
    )
    torch.testing.assert_close(swap @ inverse, torch.eye(2, dtype=dtype).expand(2, 2, 2), rtol=0, atol=1e-15)
    with pytest.raises(InputError, match="singular"):
        eliminate(*(DoubleWord(m, torch.zeros_like(m)) for m in (torch.ones(1, 2, 2, dtype=dtype), right[:, :2])))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_float32_is_float64_rounded_for_long_phases_too(method: str, dtype: torch.dtype) -> None:
    """Values and gradients with poles and frequencies from 1e-6 to 1e6, undamped ones too, and dt to 50."""
    rng = np.random.default_rng(0)
    decay = np.concatenate([np.zeros(20), 10.0 ** rng.uniform(-6, 6, 60), [0.0, 1e-6, 1e6]])
    turn = np.concatenate([10.0 ** rng.uniform(-6, 6, 80) * rng.choice([-1, 1], 80), [962827.625, 1e6, 0.0]])
    A = torch.tensor(-decay + (1j * turn if dtype.is_complex else 0)).to(dtype)
    for dt in (1e-6, 1.0, 7.188058, 50.0):
        results = []
        for wide in (False, True):
            poles = (
                A.to(torch.complex128 if dtype.is_complex else torch.float64) if wide else A.clone()
            ).requires_grad_()
            step = torch.tensor(dt).to(torch.float64 if wide else torch.float32)
            A_bar, B_bar = discretize_diagonal(poles, torch.ones_like(poles), step, method, alpha=alpha(method))
            slopes = [
                torch.autograd.grad(z.real.sum(), poles, retain_graph=True)[0]
                for z in (A_bar, B_bar)
                if z.requires_grad
            ]
            results.append([A_bar.detach(), B_bar.detach(), *slopes])
        # the derivative of A_bar under gbt is a difference of terms like B_bar
        terms = results[1][1].abs() if method in ALPHA else torch.zeros(len(A))
        for got, want in zip(*results):
            error = (got.to(want.dtype) - want).abs()
            assert bool((error <= 2e-6 * (want.abs() + terms) + 1e-36).all()), (dt, error.max())
        if dtype.is_complex and method in ("zoh", "bilinear"):
            assert float(results[0][0][:20].abs().max()) <= 1 + 1e-6


def test_a_zero_denominator_and_nan_are_refused() -> None:
    for poles in ([2.0, -1.0], [2.0 + 0j, 1j]):
        A = torch.tensor(poles)
        with pytest.raises(InputError, match="I - alpha dt A, is singular"):
            discretize_diagonal(A, torch.ones_like(A), 1.0, "bilinear")
        assert not discretize_diagonal(A, torch.ones_like(A), 1.0, "bilinear", check_dt=False)[0].isfinite().all()
    for discretise, shape in ((discretize_diagonal, (2,)), (discretize_dense, (2, 2))):
        with pytest.raises(InputError, match="A holds NaN or infinity"):
            discretise(torch.full(shape, float("nan")), torch.ones(2), 1.0)


@pytest.mark.parametrize("dt", [None, "a", True, [0.1]])
def test_a_dt_or_alpha_that_is_no_number(dt: Any) -> None:
    for discretise, A in ((discretize_dense, -torch.eye(2)), (discretize_diagonal, -torch.ones(2))):
        with pytest.raises(InputError, match="dt must be a number or a tensor") as caught:
            discretise(A, torch.ones(2), dt)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match="needs alpha between 0"):
            discretise(A, torch.ones(2), 1.0, "gbt", alpha=dt)
