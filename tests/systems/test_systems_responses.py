"""Systems: simulation, responses, poles, and the mass on a spring against its closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems import ContinuousSystem, DiscreteSystem, discretize, mass_spring_damper

F64 = torch.float64


def randn(*shape: int, dtype: torch.dtype = F64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def system(
    *,
    diagonal: bool,
    inputs: int | None = 2,
    outputs: int | None = 3,
    leading: tuple[int, ...] = (),
    complex_: bool = False,
) -> ContinuousSystem:
    """A random stable one with 4 states."""
    dtype = torch.complex128 if complex_ else F64
    m, p = (() if inputs is None else (inputs,)), (() if outputs is None else (outputs,))
    A = randn(*leading, 4, dtype=dtype, seed=1) if diagonal else randn(*leading, 4, 4, dtype=dtype, seed=1)
    A = A - 3 if diagonal else A - 3 * torch.eye(4, dtype=dtype)
    B, C = randn(*leading, 4, *m, dtype=dtype, seed=2), randn(*leading, *p, 4, dtype=dtype, seed=3)
    return ContinuousSystem(A, B, C, randn(*leading, *p, *m, dtype=dtype, seed=4), diagonal=diagonal)


KINDS: dict[str, dict[str, Any]] = {
    "dense": {"diagonal": False},
    "diagonal": {"diagonal": True},
    "one input": {"diagonal": False, "inputs": None},
    "one output": {"diagonal": True, "outputs": None},
    "one of each": {"diagonal": False, "inputs": None, "outputs": None},
    "complex": {"diagonal": True, "complex_": True, "inputs": None, "outputs": None},
    "complex dense, batch": {"diagonal": False, "complex_": True, "leading": (3,)},
    "batch": {"diagonal": True, "leading": (2, 3), "inputs": None},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
RULES = ("zoh", "bilinear", "foh")


def dense_matrix(s: ContinuousSystem | DiscreteSystem) -> Tensor:
    return torch.diag_embed(s.A) if s.diagonal else s.A


def full(s: ContinuousSystem | DiscreteSystem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, C, D with all axes, by the letter."""
    assert s.C is not None
    assert s.D is not None
    n_axes = len(s.leading)
    B = s.B if s.B.ndim == n_axes + 2 else s.B[..., None]
    C = s.C if s.C.ndim == n_axes + 2 else s.C[..., None, :]
    return dense_matrix(s), B, C, s.D.reshape(*s.leading, C.shape[-2], B.shape[-1])


def inputs_of(s: ContinuousSystem | DiscreteSystem, length: int) -> Tensor:
    return randn(*s.leading, length, *s.B.shape[len(s.leading) + 1 :], seed=5)


@every_kind
@pytest.mark.parametrize("method", RULES)
def test_simulation_is_the_recurrence(kind: str, method: str) -> None:
    discrete = discretize(system(**KINDS[kind]), 0.2, method)
    A, B, C, D = full(discrete)
    u = inputs_of(discrete, 7)
    driven = (u if u.ndim == len(discrete.leading) + 2 else u[..., None]).to(A.dtype)
    x, outputs = torch.zeros_like(B[..., 0]), []
    for t in range(7):
        before, x = x, (A @ x[..., None])[..., 0] + (B @ driven[..., t, :, None])[..., 0]
        read = x if method != "foh" else before
        outputs.append((C @ read[..., None])[..., 0] + (D @ driven[..., t, :, None])[..., 0])
    expected = torch.stack(outputs, -2)
    expected = expected[..., 0] if discrete.single_output else expected
    y, none = discrete.simulate(u)
    assert none is None
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-13)
    y, final = discrete.simulate(u, discrete.initial_state())
    assert final is not None
    assert torch.allclose(final, x, rtol=1e-12, atol=1e-13)


@every_kind
@pytest.mark.parametrize("method", RULES)
def test_simulation_can_be_cut_anywhere(kind: str, method: str) -> None:
    discrete = discretize(system(**KINDS[kind]), 0.2, method)
    u = inputs_of(discrete, 6)
    axis = len(discrete.leading)
    state = randn(*discrete.leading, 4, dtype=discrete.A.dtype, seed=6)
    whole, end = discrete.simulate(u, state)
    assert end is not None
    for cut in range(7):
        first, middle = discrete.simulate(u.narrow(axis, 0, cut), state)
        second, last = discrete.simulate(u.narrow(axis, cut, 6 - cut), middle)
        assert last is not None
        assert torch.equal(torch.cat([first, second], axis), whole)
        assert torch.equal(last, end)


@every_kind
@pytest.mark.parametrize("method", RULES)
def test_impulse_response_is_powers_of_A(kind: str, method: str) -> None:
    """K_k = C A^k B with D at k = 0 (for foh D, then C A^(k-1) B), and y is the convolution of u with it."""
    discrete = discretize(system(**KINDS[kind]), 0.2, method)
    A, B, C, D = full(discrete)
    terms = [C @ torch.linalg.matrix_power(A, k) @ B for k in range(9)]
    expected = torch.stack([D, *terms[:-1]] if method == "foh" else [terms[0] + D, *terms[1:]], -1)
    for length in (1, 2, 9):
        response = discrete.impulse_response(length)
        shaped = expected[..., :length].reshape(response.shape)
        assert response.shape[-1] == length
        assert torch.allclose(response, shaped, rtol=1e-12, atol=1e-14)
    u = inputs_of(discrete, 9)
    driven = (u if u.ndim == len(discrete.leading) + 2 else u[..., None]).to(A.dtype)
    convolved = sum(
        torch.nn.functional.pad(torch.einsum("...pm,...lm->...lp", expected[..., k], driven), (0, 0, k, 0))[..., :9, :]
        for k in range(9)
    )
    assert isinstance(convolved, Tensor)
    y, _ = discrete.simulate(u)
    assert torch.allclose(y, convolved[..., 0] if discrete.single_output else convolved, rtol=1e-11, atol=1e-13)


@every_kind
@pytest.mark.parametrize("method", RULES)
def test_frequency_response_is_the_z_transform(kind: str, method: str) -> None:
    discrete = discretize(system(**KINDS[kind]), 0.5, method)
    omega = torch.linspace(-6, 6, 5, dtype=F64)
    response = discrete.impulse_response(400).to(torch.complex128)
    phase = torch.exp(-1j * omega * 0.5 * torch.arange(400, dtype=F64)[:, None])
    assert torch.allclose(discrete.frequency_response(omega), response @ phase, rtol=1e-10, atol=1e-12)


@every_kind
def test_responses_in_continuous_time(kind: str) -> None:
    s = system(**KINDS[kind])
    A, B, C, D = (z.to(torch.complex128) for z in full(s))
    omega = torch.tensor([-3.0, 0.0, 0.7, 100.0], dtype=F64)
    for k, point in enumerate(omega):
        expected = C @ torch.linalg.inv(1j * point * torch.eye(4, dtype=A.dtype) - A) @ B + D
        ours = s.frequency_response(omega)[..., k]
        assert torch.allclose(ours, expected.reshape(ours.shape), rtol=1e-12)
    times = torch.tensor([0.0, 0.3, 2.0], dtype=F64)
    response = s.impulse_response(times).to(torch.complex128)
    for k, time in enumerate(times):
        expected = C @ torch.linalg.matrix_exp(time * A) @ B
        assert torch.allclose(response[..., k], expected.reshape(response.shape[:-1]), rtol=1e-11, atol=1e-13)


def test_dense_and_diagonal_systems_are_one() -> None:
    diagonal = system(diagonal=True, leading=(2,))
    dense = ContinuousSystem(torch.diag_embed(diagonal.A), diagonal.B, diagonal.C, diagonal.D)
    dt = torch.tensor([[0.1, 0.2], [1.0, 2.0], [3.0, 4.0]], dtype=F64)
    omega = torch.tensor([0.5, 2.0], dtype=F64)
    for method in RULES:
        one, other = discretize(diagonal, dt, method), discretize(dense, dt, method)
        assert one.leading == other.leading == (3, 2)
        assert torch.allclose(one.impulse_response(5), other.impulse_response(5), rtol=1e-12, atol=1e-14)
        assert torch.allclose(one.frequency_response(omega), other.frequency_response(omega), rtol=1e-12, atol=1e-14)
        y, other_y = (s.simulate(inputs_of(one, 4))[0] for s in (one, other))
        assert y.shape == (3, 2, 4, 3)
        assert torch.allclose(y, other_y, rtol=1e-12, atol=1e-14)
        moduli = [s.poles().abs().sort(-1).values for s in (one, other)]
        assert torch.allclose(*moduli, rtol=1e-12)


def test_a_batch_of_steps_makes_a_batch_of_systems() -> None:
    for kind in ("dense", "one of each", "diagonal"):
        s = system(**KINDS[kind])
        many = discretize(s, torch.tensor([0.1, 0.7], dtype=F64), "foh")
        for k, dt in enumerate((0.1, 0.7)):
            one = discretize(s, dt, "foh")
            assert torch.allclose(many.impulse_response(6)[k], one.impulse_response(6), rtol=1e-12)
            omega = torch.tensor([0.4], dtype=F64)
            assert torch.allclose(many.frequency_response(omega)[k], one.frequency_response(omega), rtol=1e-12)
    without = ContinuousSystem(s.A, s.B, s.C, diagonal=True)
    direct = discretize(without, torch.tensor([0.1, 0.7], dtype=F64), "foh").D
    assert direct is not None
    assert direct.shape == (2, 3, 2)


def test_a_discrete_system_follows_the_continuous_one() -> None:
    """Each rule is exact for its inputs: zoh for steps, foh for straight lines; all meet in slow frequencies."""
    s = system(diagonal=False, inputs=None, outputs=None)
    fine = torch.linspace(0, 1, 20_001, dtype=F64)[1:]
    steps = randn(10, seed=7)
    held, _ = s.simulate(steps.repeat_interleave(2000), dt=5e-5, method="zoh")
    coarse, _ = s.simulate(steps, dt=0.1, method="zoh")
    assert torch.allclose(held[1999::2000], coarse, rtol=1e-9)
    line, _ = s.simulate(fine, dt=5e-5, method="foh")
    rough, _ = s.simulate(torch.linspace(0.1, 1, 10, dtype=F64), dt=0.1, method="foh")
    assert torch.allclose(line[1999::2000], rough, rtol=1e-9)
    halfway = [
        s.simulate(steps, dt=0.1, **rule)[0] for rule in ({"method": "gbt", "alpha": 0.5}, {"method": "bilinear"})
    ]
    assert torch.equal(halfway[0], halfway[1])
    omega = torch.tensor([0.01], dtype=F64)
    for method in ("zoh", "bilinear", "foh", "euler", "backward_euler"):
        discrete = discretize(s, 1e-4, method)
        assert torch.allclose(discrete.frequency_response(omega), s.frequency_response(omega), rtol=1e-3)


# -------------------------------------------------------------------------------------------- the mass on a spring


@pytest.mark.parametrize(("mass", "stiffness", "damping"), [(1.0, 4.0, 0.5), (2.0, 8.0, 0.0), (0.5, 1.0, 3.0)])
def test_mass_spring_damper_moves_as_the_closed_form_says(mass: float, stiffness: float, damping: float) -> None:
    spring = mass_spring_damper(mass, stiffness, damping)
    decay, square = damping / (2 * mass), complex(stiffness / mass - (damping / (2 * mass)) ** 2)
    omega = square**0.5  # imaginary where it is overdamped
    times = 0.1 * torch.arange(1, 51, dtype=F64)
    released = (torch.exp(-decay * times) * (torch.cos(omega * times) + decay / omega * torch.sin(omega * times))).real
    y, _ = spring.simulate(torch.zeros(50, dtype=F64), torch.tensor([1.0, 0.0], dtype=F64), dt=0.1)
    assert torch.allclose(y, released, rtol=1e-11, atol=1e-13)  # let go at q = 1
    pushed, _ = spring.simulate(torch.ones(50, dtype=F64), dt=0.1)
    assert torch.allclose(pushed, (1 - released) / stiffness, rtol=1e-11, atol=1e-13)  # a constant force
    struck = (torch.exp(-decay * times) * torch.sin(omega * times) / (omega * mass)).real
    assert torch.allclose(spring.impulse_response(times), struck, rtol=1e-11, atol=1e-13)
    frequency = torch.tensor([0.3, 5.0], dtype=F64)
    transfer = 1 / (stiffness - mass * frequency**2 + 1j * damping * frequency)
    assert torch.allclose(spring.frequency_response(frequency), transfer, rtol=1e-13)
    roots = spring.poles()
    assert torch.allclose(mass * roots**2 + damping * roots + stiffness, torch.zeros_like(roots), atol=1e-12)
    assert spring.is_stable()


def test_mass_spring_damper_has_the_matrix_of_the_equation() -> None:
    spring = mass_spring_damper(1.0, 3.0, 0.5)
    assert spring.A.tolist() == [[0, 1], [-3.0, -0.5]]  # the article has the second row as (-c, -k)
    many = mass_spring_damper(torch.tensor([1.0, 2.0]), torch.tensor(3.0), 0.5, dtype=torch.float32)
    assert many.A.shape == (2, 2, 2)
    assert many.A.dtype == torch.float32
    with pytest.raises(InputError, match="mass must be positive"):
        mass_spring_damper(0.0, 1.0, 1.0)
    with pytest.raises(InputError, match="do not broadcast"):
        mass_spring_damper(torch.ones(2), torch.ones(3), 1.0)
    stiffness = torch.tensor(3.0, dtype=F64, requires_grad=True)
    mass_spring_damper(1.0, stiffness, 0.5).simulate(torch.ones(4, dtype=F64), dt=0.1)[0].sum().backward()
    assert stiffness.grad is not None
    assert stiffness.grad.isfinite()


# --------------------------------------------------------------------------------------------------------- stability


def test_stability() -> None:
    growing = ContinuousSystem(torch.tensor([[-1.0, 0.2], [-1.0, -2.0]]), torch.ones(2, 2), diagonal=True)
    assert growing.is_stable().tolist() == [False, True]
    with pytest.raises(
        InputError, match=r"pole at 0.2.*, which grows; a stable continuous system has no pole with a pos"
    ):
        growing.require_stable()
    discretize(growing, 0.1)  # nobody asked
    border = ContinuousSystem(torch.tensor([0.0, -1.0]), torch.ones(2), diagonal=True)
    assert border.require_stable() is border
    assert mass_spring_damper(1.0, 2.0, 0.0).is_stable()
    assert not mass_spring_damper(1.0, 2.0, -0.1).is_stable()
    assert not discretize(mass_spring_damper(1.0, 100.0, 0.1), 1.0, "euler").is_stable()
    assert discretize(mass_spring_damper(1.0, 100.0, 0.1), 1.0, "bilinear").is_stable()
    with pytest.raises(InputError, match="no pole outside the unit circle"):
        DiscreteSystem(torch.tensor([1.5]), torch.ones(1), diagonal=True).require_stable()
    complex_poles = system(diagonal=True, complex_=True).poles()
    assert complex_poles.is_complex()
    assert system(diagonal=True).poles().is_complex()


# --------------------------------------------------------------------------------------------------------- bad input

A2, B2, C2 = -torch.eye(2), torch.ones(2), torch.ones(2)
DECAY = ContinuousSystem(A2, B2, C2)
STEP = DiscreteSystem(0.5 * torch.eye(2), B2, C2)
TWO = DiscreteSystem(0.5 * torch.eye(2), torch.ones(2, 2), C2)
PURE = DiscreteSystem(torch.ones(1), torch.ones(1), torch.ones(1), diagonal=True)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: ContinuousSystem(torch.ones(2, 3), B2), r"A must be \(..., n, n\), n > 0 .*; got A \(2, 3\), B \(2,\)"),
    (lambda: ContinuousSystem(torch.ones(2), B2), "or pass diagonal=True"),
    (lambda: ContinuousSystem(torch.empty(0), torch.empty(0), diagonal=True), "n > 0"),
    (lambda: ContinuousSystem(torch.eye(2).long(), B2), "A must be float32, .* got torch.int64"),
    (lambda: ContinuousSystem(A2, B2, C2.double()), "must have one dtype"),
    (lambda: ContinuousSystem(A2, torch.ones(3)), r"B must be \(..., 2\) with 0 leading axes"),
    (lambda: ContinuousSystem(A2, torch.ones(2, 2, 2)), "B must be"),
    (lambda: ContinuousSystem(A2, B2, torch.ones(2, 3)), r"C must be \(..., 2, 2\)"),
    (lambda: ContinuousSystem(A2, B2, C2, torch.ones(1)), r"D must be \(...\) with 0 leading axes"),
    (lambda: ContinuousSystem(A2, B2, None, torch.ones(())), "a system with D needs C"),
    (lambda: ContinuousSystem(A2.expand(3, 2, 2), torch.ones(2, 2)), "the leading axes do not broadcast"),
    (lambda: ContinuousSystem(A2 * math.nan, B2), "A holds NaN or infinity"),
    (lambda: ContinuousSystem(A2, B2).frequency_response(torch.ones(1)), "this system has no C"),
    (lambda: DiscreteSystem(A2, B2).simulate(torch.ones(3)), "this system has no C"),
    (lambda: DiscreteSystem(A2, B2, dt=0.0), "dt must be real, positive and finite"),
    (lambda: DiscreteSystem(A2, B2, dt=math.inf), "dt must be real, positive and finite, got inf"),
    (lambda: DiscreteSystem(A2, torch.ones(2, 2), dt=torch.ones(3), diagonal=True), "does not broadcast"),
    (lambda: DiscreteSystem(A2, B2, reads="later"), "reads='later' is unknown; use 'after' or 'before'"),  # type: ignore[arg-type]
    (lambda: discretize(STEP, 0.1), "discretize needs a ContinuousSystem, got DiscreteSystem"),  # type: ignore[arg-type]
    (lambda: discretize(DECAY, -0.1), "dt must be positive"),
    (lambda: discretize(DECAY, 0.1, "trapezium"), "method='trapezium' is unknown; the methods are zoh"),
    (lambda: DECAY.impulse_response(torch.tensor([-1.0])), "times must be a vector"),
    (lambda: DECAY.frequency_response(torch.ones(1, 1)), r"omega must be a vector of frequencies \(f,\)"),
    (lambda: DECAY.frequency_response(1.0), "got float"),  # type: ignore[arg-type]
    (lambda: STEP.impulse_response(0), "length must be a whole number of steps above 0, got 0"),
    (lambda: STEP.simulate(torch.ones(3).double()), r"u must be \(..., length\) in torch.float32; got torch.float64"),
    (lambda: STEP.simulate(torch.ones(3) + 0j), "u must be"),
    (lambda: TWO.simulate(torch.ones(5, 3)), r"u must be \(..., length, 2\)"),
    (lambda: TWO.simulate([1.0]), "got list"),  # type: ignore[arg-type]
    (lambda: STEP.simulate(torch.ones(3), torch.zeros(3)), r"state must be \(..., 2\)"),
    (lambda: STEP.simulate(torch.ones(4, 3), torch.zeros(5, 2)), "does not fit the leading axes"),
    (lambda: PURE.frequency_response(torch.zeros(1)), "omega is a pole"),
    (lambda: ContinuousSystem(A2 * 0, B2, C2).frequency_response(torch.zeros(1)), "omega is a pole"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
