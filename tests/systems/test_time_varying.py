"""Systems that change with time, and the block matrices that they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_reduction import C128, F64, random
from torch import Tensor

from statewise import ContinuousSystem, TimeVaryingSystem, discretize, hippo
from statewise.errors import InputError
from statewise.semiseparable import BlockSequentiallySemiseparable, SequentiallySemiseparable
from statewise.systems import METHODS

RULES = [method for method in METHODS if method != "foh"]


def options(method: str) -> dict[str, float]:
    return {"alpha": 0.3} if method == "gbt" else {}


@pytest.mark.parametrize("dtype", [F64, C128])
@pytest.mark.parametrize("method", RULES)
def test_a_system_that_does_not_change(method: str, dtype: torch.dtype) -> None:
    system = random(4, 2, 3, dtype)
    u = torch.randn(2, 7, 2, dtype=F64).to(dtype)
    state = torch.randn(2, 4, dtype=F64).to(dtype)
    expected, last = discretize(system, 0.25, method, **options(method)).simulate(u, state)  # type: ignore[arg-type]
    times = torch.arange(8, dtype=F64) * 0.25 + 3
    parts = (system.A, system.B, system.C, system.D)
    constant = TimeVaryingSystem(*(lambda t, z=z: z for z in parts))
    samples = TimeVaryingSystem(*(z.expand(7, *z.shape) for z in parts))  # type: ignore[union-attr]
    for varying in (constant, samples):
        y, h = varying.simulate(u, state, times=times, method=method, **options(method))
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(h, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["euler", "backward_euler", "bilinear", "gbt"])
def test_hippos_memory_with_its_clock(method: str) -> None:
    """LegS: A / t. One step by its own words, in float64."""
    A, B = hippo.transition("legs", 5)
    alpha = {"euler": 0.0, "backward_euler": 1.0, "bilinear": 0.5, "gbt": 0.3}[method]
    legs = TimeVaryingSystem(lambda t: A / t, lambda t: B[:, None] / t, lambda t: torch.eye(5, dtype=F64))
    times = torch.tensor([1.0, 1.5, 2.5, 4.0], dtype=F64)
    u, x = torch.randn(3, 1, dtype=F64), torch.randn(5, dtype=F64)
    y, _ = legs.simulate(u, x, times=times, method=method, **options(method))
    eye = torch.eye(5, dtype=F64)
    for k in range(3):
        dt, s, e = times[k + 1] - times[k], times[k], times[k + 1]
        right = (eye + (1 - alpha) * dt * A / s) @ x + dt * (alpha / e + (1 - alpha) / s) * B * u[k]
        x = torch.linalg.inv(eye - alpha * dt * A / e) @ right
        torch.testing.assert_close(y[k], x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("backward_euler", 1), ("bilinear", 2), ("zoh", 2)])
def test_order_of_the_error(method: str, order: int) -> None:
    """A rotating, decaying system with a constant input, beside 20,000 small steps of the classical Runge-Kutta."""

    def A(t: Tensor) -> Tensor:
        return torch.stack([torch.stack([-0.3 - 0.1 * t, t]), torch.stack([-t, torch.cos(t) - 1])])

    def B(t: Tensor) -> Tensor:
        return torch.stack([torch.sin(t), 1 + t])[:, None]

    system = TimeVaryingSystem(A, B, lambda t: torch.eye(2, dtype=F64))
    x, n = torch.tensor([1.0, -1.0], dtype=F64), 2000

    def slope(t: float, x: Tensor) -> Tensor:
        at = torch.tensor(t, dtype=F64)
        return A(at) @ x + B(at)[:, 0]

    h, exact = 2 / n, x
    for k in range(n):
        t = k * h
        k1 = slope(t, exact)
        k2 = slope(t + h / 2, exact + h / 2 * k1)
        k3 = slope(t + h / 2, exact + h / 2 * k2)
        exact = exact + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(t + h, exact + h * k3))
    errors = []
    for steps in (64, 128):
        times = torch.linspace(0, 2, steps + 1, dtype=F64)
        y, _ = system.simulate(torch.ones(steps, 1, dtype=F64), x, times=times, method=method)
        errors.append(float((y[-1] - exact).abs().max()))
    assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.1)


@pytest.mark.parametrize("leading", [(), (3,)])
@pytest.mark.parametrize("direct", [True, False])
def test_blocks_are_their_definition(direct: bool, leading: tuple[int, ...]) -> None:
    T, N, M, P = 5, 3, 2, 4
    A, B, C, D = (torch.randn(*leading, T, *s, dtype=F64) for s in ((N, N), (N, M), (P, N), (P, M)))
    matrix = BlockSequentiallySemiseparable(A, B, C, D if direct else None)
    dense = matrix.dense()
    assert dense.shape == matrix.shape == (*leading, T * P, T * M)
    for j in range(T):
        for i in range(T):
            block = torch.zeros(*leading, P, M, dtype=F64)
            if j >= i:
                block = B[..., i, :, :]
                for k in range(i + 1, j + 1):
                    block = A[..., k, :, :] @ block
                block = C[..., j, :, :] @ block
            if i == j and direct:
                block = block + D[..., j, :, :]
            torch.testing.assert_close(dense[..., j * P : (j + 1) * P, i * M : (i + 1) * M], block)
    for x in (torch.randn(T * M, dtype=F64), torch.randn(2, *leading, T * M, 6, dtype=F64)):
        torch.testing.assert_close(matrix @ x, torch.matmul(dense, x))
    u = torch.randn(*leading, T, M, dtype=F64)
    y, none = matrix.simulate(u)
    assert none is None
    torch.testing.assert_close(y.flatten(-2), (dense @ u.flatten(-2).unsqueeze(-1)).squeeze(-1))
    # Cut anywhere
    parts, state = [], torch.zeros(*leading, N, dtype=F64)
    for cut in (slice(0, 2), slice(2, 5)):
        piece = BlockSequentiallySemiseparable(
            *(z[..., cut, :, :] for z in (A, B, C)), D[..., cut, :, :] if direct else None
        )
        out, state = piece.simulate(u[..., cut, :], state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, -2), y)


def test_blocks_of_one_are_the_plain_matrix() -> None:
    A, B, C = torch.randn(6, 3, 3, dtype=F64), torch.randn(6, 3, dtype=F64), torch.randn(6, 3, dtype=F64)
    blocks = BlockSequentiallySemiseparable(A, B[..., None], C[:, None])
    plain = SequentiallySemiseparable(A, B, C)
    torch.testing.assert_close(blocks.dense(), plain.dense())
    assert torch.equal(blocks.block_ranks(), plain.block_ranks())


def test_gradients_reach_the_functions() -> None:
    a = torch.tensor(0.5, dtype=F64, requires_grad=True)
    eye = torch.eye(2, dtype=F64)
    system = TimeVaryingSystem(lambda t: -a * t * eye, lambda t: eye, lambda t: eye)
    times = torch.linspace(0, 1, 5, dtype=F64)

    def total(value: Tensor) -> Tensor:
        varying = TimeVaryingSystem(lambda t: -value * t * eye, lambda t: eye, lambda t: eye)
        return varying.simulate(torch.ones(4, 2, dtype=F64), times=times)[0].sum()

    assert torch.autograd.gradcheck(total, (a,))
    assert system.discretize(times).A.requires_grad


def test_errors() -> None:
    eye = torch.eye(2, dtype=F64)
    good = TimeVaryingSystem(lambda t: eye, lambda t: eye, lambda t: eye)
    times = torch.arange(4.0, dtype=F64)
    u = torch.ones(3, 2, dtype=F64)
    for call, message in (
        (lambda: good.simulate(u, times=times, method="foh"), "foh is not defined for a system that changes"),
        (lambda: good.simulate(u, times=times.flip(0)), "times must ascend"),
        (lambda: good.simulate(u, times=times[:1]), r"times must be a floating-point vector \(T \+ 1,\)"),
        (lambda: good.simulate(u, times=times, method="simpson"), "the methods are"),
        (lambda: good.simulate(u[:2], times=times), r"u must be \(\.\.\., 3, 2\)"),
        (lambda: good.simulate(u, u[0].float(), times=times), r"state must be \(\.\.\., 2\)"),
        (lambda: good.simulate([1.0, 2.0], times=times), "u must be a tensor, got list"),  # type: ignore[arg-type]
        (
            lambda: good.simulate(u + 0j, times=times),
            r"u must be \(\.\.\., 3, 2\) in torch.float64; got torch.complex128",
        ),
        (lambda: good.simulate(u[:0], times=times), r"u must be \(\.\.\., 3, 2\)"),
        (lambda: good.simulate(u[:0, :1], times=times[:1]), r"u must be \(\.\.\., 0, 2\)"),
        (lambda: good.simulate(u[:0], u[0].float(), times=times[:1]), r"state must be \(\.\.\., 2\)"),
        (lambda: good.simulate(u[:0], times=times[:1], method="simpson"), "the methods are"),
        (lambda: good.simulate(u[:0], times=times[:1], method="foh"), "foh is not defined for a system that changes"),
        (lambda: good.simulate(u.expand(5, 3, 2), torch.ones(4, 2, dtype=F64), times=times), "axes of u .* and state"),
        (lambda: good.simulate(u, [0.0, 0.0], times=times), "state must be a tensor, got list"),  # type: ignore[arg-type]
        (lambda: ContinuousSystem(lambda t: eye, eye), "got function; coefficients that change .* TimeVaryingSystem"),  # type: ignore[arg-type]
        (lambda: TimeVaryingSystem(eye, lambda t: eye, lambda t: eye), "for a constant give a function, lambda t: A"),
        (lambda: TimeVaryingSystem(3, lambda t: eye, lambda t: eye), "A must be a function of time or samples"),  # type: ignore[arg-type]
        (lambda: TimeVaryingSystem(eye.expand(3, 2, 2), eye.expand(4, 2, 2), lambda t: eye), r"steps; got \[3, 4\]"),
        (
            lambda: TimeVaryingSystem(eye.expand(2, 2, 2), lambda t: eye, lambda t: eye).discretize(times),
            "samples of 2 steps, and times has 3 steps",
        ),
        (lambda: TimeVaryingSystem(lambda t: eye / 0, good.B, good.C).discretize(times), "A holds NaN or infinity"),
        (lambda: TimeVaryingSystem(lambda t: eye[:1], good.B, good.C).discretize(times), r"expected A \(n, n\)"),
        (
            lambda: TimeVaryingSystem(lambda t: eye[0], good.B, good.C).discretize(times),
            r"A\(t\) must be a tensor of two",
        ),
        (lambda: BlockSequentiallySemiseparable(eye, eye, eye), "equally many axes, three or more"),
        (
            lambda: BlockSequentiallySemiseparable(eye[None], eye[None, :1], eye[None]),
            r"expected A \(\.\.\., T, N, N\)",
        ),
        (lambda: BlockSequentiallySemiseparable(eye[None], eye[None], eye[None, :1]).block_ranks(), "as many outputs"),
    ):
        with pytest.raises(InputError, match=message):
            call()


READS_START = ("euler", "bilinear", "gbt")


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_what_is_infinite_where_a_rule_reads_it_is_refused(name: str, method: str) -> None:
    """1 / t at the first time, and 1 / (t - 3) at the last: refused if the rule reads it there, else never called."""
    eye = 0.1 * torch.eye(2, dtype=F64)
    finite: dict[str, Callable[[Tensor], Tensor]] = dict.fromkeys("ABCD", lambda t: eye)
    times = torch.arange(4.0, dtype=F64)
    u = torch.ones(3, 2, dtype=F64)
    at_start = name in "AB" and method in READS_START
    at_end = name in "CD" or method in {"A": ("backward_euler", "bilinear", "gbt")}.get(
        name, ("backward_euler", "bilinear", "gbt", "dirac", "mamba")
    )
    for pole, is_read in ((0.0, at_start), (3.0, at_end)):
        system = TimeVaryingSystem(**finite | {name: lambda t, pole=pole: eye / (t - pole)})
        if is_read:
            with pytest.raises(
                InputError, match=f"^{name} holds NaN or infinity at one of the times, first at t={pole:g};"
            ):
                system.simulate(u, times=times, method=method, **options(method))
        else:
            assert bool(system.simulate(u, times=times, method=method, **options(method))[0].isfinite().all())


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
@pytest.mark.parametrize("step", [0, 2])
def test_samples_that_are_not_finite_are_refused(name: str, step: int, method: str) -> None:
    samples = {letter: torch.eye(2, dtype=F64).repeat(3, 1, 1) for letter in "ABCD"}
    samples[name][step, 1, 0] = torch.nan
    times = torch.arange(4.0, dtype=F64)
    with pytest.raises(InputError, match=f"^the samples of {name} hold NaN or infinity, first that of step {step}$"):
        TimeVaryingSystem(**samples).discretize(times, method, **options(method))


@pytest.mark.parametrize("method", ["bilinear", "gbt"])
def test_a_shape_that_changes_at_the_first_time_is_refused(method: str) -> None:
    eye = torch.eye(2, dtype=F64)
    system = TimeVaryingSystem(lambda t: eye, lambda t: eye[:, : 1 if t == 0 else 2], lambda t: eye)
    with pytest.raises(InputError, match=r"^B\(t\) must be a tensor of two axes, of one shape at all times"):
        system.discretize(torch.arange(4.0, dtype=F64), method, **options(method))


@pytest.mark.parametrize("method", RULES)
def test_steps_that_the_coefficients_dtype_does_not_hold(method: str) -> None:
    eye = torch.eye(2)
    system = TimeVaryingSystem(lambda t: -eye, lambda t: eye, lambda t: eye)
    for longest in (1e-60, 1e60):
        times = torch.tensor([0.0, longest], dtype=F64)
        with pytest.raises(InputError, match=r"which torch\.float32 of A does not hold; give coefficients of float64"):
            system.discretize(times, method, **options(method))


def test_continuous_systems_are_as_they_were() -> None:
    system = ContinuousSystem(torch.tensor([[-1.0]]), torch.ones(1), torch.ones(1))
    assert discretize(system, 1.0, "bilinear").A.item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("sampled", [False, True])
def test_real_inputs_of_complex_coefficients(sampled: bool) -> None:
    """As of a constant system: u is complex with no imaginary part."""
    torch.manual_seed(0)
    A, B, C, D = (torch.randn(2, 2, dtype=torch.complex128) for _ in range(4))
    times, u = 0.1 * torch.arange(5.0, dtype=F64), torch.randn(3, 4, 2, dtype=F64)
    given = [m.expand(4, 2, 2) if sampled else lambda t, m=m: m for m in (A, B, C, D)]
    system, state = TimeVaryingSystem(*given), torch.randn(2, dtype=torch.complex128)
    y, end = system.simulate(u, state, times=times)
    constant, last = ContinuousSystem(A, B, C, D).simulate(u, state, dt=0.1)
    assert end is not None
    assert last is not None
    torch.testing.assert_close(y, constant, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=1e-10, atol=1e-12)
    assert torch.equal(y, system.simulate(u + 0j, state, times=times)[0])
    assert torch.equal(system.simulate(u, times=times)[0], system.simulate(u, 0 * state, times=times)[0])


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_no_steps_have_no_outputs(sampled: bool, dtype: torch.dtype) -> None:
    """A signal may be cut before its first step; where 1 / t is infinite then, nothing is read."""
    eye = torch.eye(2, dtype=dtype)
    C = torch.ones(3, 2, dtype=dtype)
    given = [m.new_zeros(0, *m.shape) if sampled else lambda t, m=m: m / t for m in (eye, eye, C)]
    system, times = TimeVaryingSystem(*given), torch.zeros(1, dtype=F64)
    state = torch.ones(5, 1, 2, dtype=dtype)
    y, end = system.simulate(torch.ones(4, 0, 2, dtype=F64), state, times=times)
    assert end is not None
    assert y.shape == (5, 4, 0, 3)
    assert y.dtype == dtype
    assert torch.equal(end, state.expand(5, 4, 2))
    assert system.simulate(torch.ones(0, 2, dtype=F64), times=times)[1] is None
