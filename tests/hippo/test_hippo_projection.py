"""Projection against the definition (inner products by quadrature), cuts, long signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from projected import DURATION, THETA, options, randn, simulated, smooth, tilted
from torch import Tensor

from statewise.hippo import MEASURES, HippoState, initial_state, project, reconstruct, transition
from statewise.systems import discretize_dense

WINDOWS = tuple(measure for measure in MEASURES if measure != "legs")


def projected(measure: str, n: int) -> Tensor:
    """The inner products of the past of ``smooth`` at t = DURATION with the basis and its measure, by quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    x, w = torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2
    span = THETA if measure in ("legt", "lmu", "fourier") else DURATION
    ages = span * x
    i = torch.arange(n, dtype=torch.float64)[:, None]
    if measure in ("legs", "legt", "lmu"):
        z = 1 - 2 * x if measure != "lmu" else 2 * x - 1
        functions = torch.from_numpy(np.polynomial.legendre.legvander(z.numpy(), n - 1)).T
        functions = functions * ((2 * i + 1) if measure == "lmu" else (2 * i + 1).sqrt())
    elif measure in ("tlagt", "glagt"):
        s = ages / THETA
        functions, weight = tilted(measure, n, s, 0.0, 1.0)
        functions = functions * weight * span / THETA
    elif measure == "lagt":
        s = ages / THETA
        functions = torch.from_numpy(np.polynomial.laguerre.lagvander(s.numpy(), n - 1)).T * torch.exp(-s / 2)
        functions = functions * span / THETA
    else:
        s = ages / THETA
        functions = torch.zeros(n, len(s), dtype=torch.float64)
        functions[0] = 1
        for k in range(1, n // 2):
            functions[2 * k] = math.sqrt(2) * torch.cos(2 * math.pi * k * s)
            functions[2 * k + 1] = math.sqrt(2) * torch.sin(2 * math.pi * k * s)
        if measure == "fourier_diag":
            functions = functions * torch.exp(-s / 2) * span / THETA
    return functions @ (w * smooth(DURATION - ages))


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
@pytest.mark.parametrize("measure", [m for m in MEASURES if m != "fourier"])
def test_the_equation_is_the_projection(measure: str, method: str) -> None:
    """And the error of the discretisation falls with dt^2. LegT and LMU at an order where the window's far end, which
    the state itself supplies, is exact to that."""
    n = 24
    exact = projected(measure, n)
    errors = [float((simulated(measure, n, length, method) - exact).abs().max()) for length in (1000, 2000)]
    assert errors[1] < (2e-6 if method == "zoh" and measure in ("legs", "lagt", "fourier_diag") else 5e-5)
    assert 3.7 < errors[0] / errors[1] < 4.3


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt", "fourier_diag"])
def test_to_a_millionth_by_extrapolation(measure: str) -> None:
    """Two step lengths give away the error of the discretisation, and what is left is the projection."""
    coarse, fine = (simulated(measure, 24, length) for length in (1000, 2000))
    torch.testing.assert_close((4 * fine - coarse) / 3, projected(measure, 24), rtol=0, atol=1e-7)


def test_samples_at_an_end_of_the_step_are_of_first_order() -> None:
    exact = projected("legs", 8)
    errors = [float((simulated("legs", 8, length, where=1.0) - exact).abs().max()) for length in (1000, 2000)]
    assert 1.9 < errors[0] / errors[1] < 2.1


@pytest.mark.parametrize("method", ["euler", "backward_euler"])
@pytest.mark.parametrize("measure", ["legt", "legs"])
def test_euler_rules_are_of_first_order(measure: str, method: str) -> None:
    n = 16 if measure == "legt" else 6
    exact = projected(measure, n)
    errors = [float((simulated(measure, n, length, method) - exact).abs().max()) for length in (8000, 16000)]
    assert errors[1] < 5e-3
    assert 1.8 < errors[0] / errors[1] < 2.2


def test_legs_by_euler_grows_before_it_forgets_and_by_the_backward_rule_does_not() -> None:
    """A single 1 among zeros: its largest coefficient on the way is about a binomial one by Euler's rule."""
    u = torch.zeros(1, 400, dtype=torch.float64)
    u[:, 0] = 1
    euler, _ = project(u, "legs", 16, method="euler")
    backward, _ = project(u, "legs", 16, method="backward_euler")
    assert euler.abs().max() > math.comb(15, 8) / 10
    assert backward.norm(dim=-1).max() <= 1 + 1e-12


def test_truncated_fourier_comes_close_slowly() -> None:
    """A window whose ends differ is no periodic function: FouT's error falls, but not like that of a polynomial."""
    errors = [
        float((simulated("fourier", n, 2000)[:8] - projected("fourier", n)[:8]).abs().max()) for n in (8, 32, 128)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_windows_are_the_recurrence(method: str) -> None:
    u = randn(2, 150, 3)
    for measure in WINDOWS:
        A, B = discretize_dense(*transition(measure, 6, theta=9.0), 0.5, method)
        x, expected = torch.zeros(2, 3, 6, dtype=torch.float64), []
        for u_t in u.unbind(1):
            x = x @ A.T + u_t[..., None] * B
            expected.append(x)
        coefficients, state = project(u, measure, 6, theta=9.0, dt=0.5, method=method)
        assert state is None
        torch.testing.assert_close(coefficients, torch.stack(expected, 1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 16])
@pytest.mark.parametrize("method", ["zoh", "bilinear", "euler", "backward_euler"])
def test_legs_is_the_time_varying_recurrence(n: int, method: str) -> None:
    """Zero-order hold in log t by the matrix exponential; bilinear with A/k before and A/(k+1) after the step; Euler's
    rule (I + A/k) x + B u / k and the backward one."""
    u = randn(2, 130, 3)
    A, B = transition("legs", n)
    identity = torch.eye(n, dtype=torch.float64)
    x, expected = u[:, 0, :, None] * identity[0], []
    expected.append(x)
    for k in range(1, 130):
        if method == "zoh":
            step, enters = discretize_dense(A, B, math.log((k + 1) / k), "zoh")
        elif method == "euler":
            step, enters = identity + A / k, B / k
        elif method == "backward_euler":
            step = torch.linalg.inv(identity - A / (k + 1))
            enters = step @ B / (k + 1)
        else:
            left = torch.linalg.inv(identity - A / (2 * (k + 1)))
            step, enters = left @ (identity + A / (2 * k)), left @ B * (1 / k + 1 / (k + 1)) / 2
        x = x @ step.T + u[:, k, :, None] * enters
        expected.append(x)
    coefficients, _ = project(u, "legs", n, method=method)
    largest = max(1.0, float(torch.stack(expected).abs().max()))  # by Euler's rule of n = 16 a thousand
    torch.testing.assert_close(coefficients, torch.stack(expected, 1), rtol=1e-11, atol=1e-12 * largest)


def test_legs_does_not_know_the_unit_of_time() -> None:
    """Each sample twice is the same past, whatever dt."""
    u = randn(1, 40)
    once, _ = project(u, "legs", 12, at=[-1])
    twice, _ = project(u.repeat_interleave(2, dim=1), "legs", 12, at=[-1], dt=0.1)
    torch.testing.assert_close(once, twice, rtol=0, atol=1e-13)


def test_beta_and_theta_in_projection_and_reconstruction() -> None:
    u = randn(1, 60)
    plain, _ = project(u, "lagt", 8, theta=5.0)
    scaled, _ = project(u, "lagt", 8, theta=5.0, beta=-3.0)
    torch.testing.assert_close(scaled, -3 * plain)
    ages = torch.linspace(0, 20, 7, dtype=torch.float64)
    torch.testing.assert_close(
        reconstruct(scaled, "lagt", ages, theta=5.0, beta=-3.0), reconstruct(plain, "lagt", ages, theta=5.0)
    )
    halved = reconstruct(plain, "legt", ages[:2] / 20, halved=True)
    torch.testing.assert_close(halved, reconstruct(plain, "legt", ages[:2] / 20, theta=2.0))


# Cutting, times, gradients
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_a_cut_anywhere_changes_nothing(measure: str, method: str) -> None:
    u = randn(2, 140, 2)
    kwargs = {"method": method, **options(measure, 25.0)}
    whole, none = project(u, measure, 6, **kwargs)
    assert none is None
    rest = initial_state(2, 6, channels=(2,), dtype=torch.float64)
    for cut in (0, 1, 2, 63, 64, 65, 128, 139, 140):
        first, state = project(u[:, :cut], measure, 6, rest, **kwargs)
        second, state = project(u[:, cut:], measure, 6, state, **kwargs)
        assert isinstance(state, HippoState)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state.coefficients, whole[:, -1], rtol=1e-11, atol=1e-12)
        assert state.steps.tolist() == [140, 140]
    assert not rest.coefficients.any()  # a state is not mutated


def test_one_step_at_a_time() -> None:
    u = randn(1, 70)
    for measure in MEASURES:
        whole, _ = project(u, measure, 4, **options(measure, 25.0))
        state: HippoState | None = initial_state(1, 4, dtype=torch.float64)
        for k in range(70):
            one, state = project(u[:, k : k + 1], measure, 4, state, **options(measure, 25.0))
            torch.testing.assert_close(one[:, 0], whole[:, k], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_rows_of_different_age(method: str) -> None:
    u = randn(3, 100, 2)
    ages = (40, 0, 7)
    states = []
    for row, age in enumerate(ages):
        rest = initial_state(1, 5, channels=(2,), dtype=torch.float64)
        _, state = project(randn(1, age, 2, seed=row + 1), "legs", 5, rest, method=method)
        assert state is not None
        states.append(state)
    together = HippoState(torch.cat([s.coefficients for s in states]), torch.cat([s.steps for s in states]))
    coefficients, after = project(u, "legs", 5, together, method=method)
    assert after is not None
    assert after.steps.tolist() == [140, 100, 107]
    for row, state in enumerate(states):
        alone, end = project(u[row : row + 1], "legs", 5, state, method=method)
        assert end is not None
        torch.testing.assert_close(coefficients[row], alone[0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(after.coefficients[row], end.coefficients[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("measure", ["legs", "legt"])
def test_chosen_times(measure: str) -> None:
    u = randn(2, 3000, 2)
    whole, _ = project(u, measure, 6, **options(measure, 250.0))
    for at in ([-1], [0], [5, 5, -3000, 1100, 1023, 1024], [], torch.tensor([2999, 63, 64]), list(range(0, 3000, 3))):
        some, _ = project(u, measure, 6, at=at, **options(measure, 250.0))
        assert some.shape == (2, len(at), 2, 6)
        torch.testing.assert_close(some, whole[:, torch.as_tensor(at, dtype=torch.long)], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_gradients(measure: str, method: str) -> None:
    u = randn(1, 9).requires_grad_()
    h = randn(1, 4, seed=1).requires_grad_()
    kwargs = {"method": method, **options(measure, 5.0)}

    def outputs(u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        coefficients, state = project(u, measure, 4, HippoState(h, torch.tensor([3])), **kwargs)
        assert state is not None
        return coefficients, state.coefficients

    assert torch.autograd.gradcheck(outputs, (u, h))
    # With and without a gradient the outputs are the same.
    torch.testing.assert_close(outputs(u, h)[0], outputs(u.detach(), h.detach())[0])


# Long signals and high orders
@pytest.mark.parametrize("measure", MEASURES)
def test_order_256_stays_bounded(measure: str) -> None:
    """Ten thousand steps of noise, looked at along the way, also where the step is as long as a tenth of the window."""
    u = randn(1, 10_000).sign()
    at = [10, 100, 300, 1000, 3000, 9999]
    for theta in (10.0, 2000.0):
        coefficients, _ = project(u, measure, 256, at=at, **options(measure, theta))
        bound = 260 if measure == "lmu" else 20  # lmu's coefficients are sqrt(2i+1) larger
        assert coefficients.isfinite().all()
        assert coefficients.abs().max() < bound
    if measure == "legs":  # Bessel: a projection is no longer than the signal
        assert coefficients.norm(dim=-1).max() <= 1 + 1e-12
        coefficients, _ = project(u[:, :600], "legs", 256, method="bilinear")
        assert coefficients.norm(dim=-1).max() < 256


def test_a_long_signal_keeps_its_precision() -> None:
    """After 200,000 steps in 3 calls, LegS still is the projection."""
    t = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    u = torch.sin(20 * t)[None]
    state: HippoState | None = initial_state(1, 32, dtype=torch.float64)
    for piece in u.split(70_000, dim=1):
        _, state = project(piece, "legs", 32, state, at=[])
    assert state is not None
    x, w = np.polynomial.legendre.leggauss(100)
    phi = np.polynomial.legendre.legvander(x, 31) * np.sqrt(2 * np.arange(32) + 1)
    exact = torch.from_numpy(phi.T @ (w / 2 * np.sin(10 * (x + 1))))
    torch.testing.assert_close(state.coefficients[0], exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
def test_float32_is_float64_rounded(measure: str) -> None:
    u = randn(2, 500)
    wide, _ = project(u, measure, 32, **options(measure, 100.0))
    state: HippoState | None = initial_state(2, 32)
    narrow, state = project(u.float(), measure, 32, state, **options(measure, 100.0))
    assert state is not None
    assert narrow.dtype == state.coefficients.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-5 * float(wide.abs().max()))
    half, _ = project(u.to(torch.bfloat16), measure, 32, **options(measure, 100.0))
    assert half.dtype == torch.float32


@pytest.mark.cuda
@pytest.mark.parametrize("measure", MEASURES)
def test_on_a_cuda_device(measure: str) -> None:
    u = randn(2, 100, 3)
    here, _ = project(u, measure, 8, at=[4, -1], **options(measure, 20.0))
    there, _ = project(u.cuda(), measure, 8, at=[4, -1], **options(measure, 20.0))
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-10, atol=1e-12)
    ages = torch.linspace(0, 0.9, 5, dtype=torch.float64)
    torch.testing.assert_close(reconstruct(there, measure, ages).cpu(), reconstruct(here, measure, ages))
