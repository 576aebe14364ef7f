"""The mathematics that the page does in JavaScript, held against the package's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from page_in_node import in_node

import statewise as sw
from statewise import hippo, semiseparable
from statewise.systems import METHODS, ContinuousSystem, discretize, mass_spring_damper

MEASURES = ("legs", "legt", "lagt", "tlagt", "fourier", "fourier_diag")


def close(found: Any, wanted: torch.Tensor, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.array(found, dtype=float), wanted.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("measure", MEASURES)
def test_hippo(measure: str) -> None:
    """Matrices, the coefficients of a signal at several times, and what is reconstructed from them."""
    torch.manual_seed(0)
    theta = None if measure == "legs" else 0.37
    for n in (2, 8, 32, 64):
        signal = torch.randn(1, 200, dtype=torch.float64)
        ages = torch.linspace(0, 0.3, 41, dtype=torch.float64)
        found = in_node(
            """
            const { measure, n, theta, dt, u, ages, counts } = data;
            const table = measure === 'legs' ? undefined : S.hippo.responses(measure, n, theta, dt, u.length);
            const { A, B } = S.hippo.transition(measure, n, theta);
            const at = counts.map((count) => S.hippo.project(u, measure, n, { theta, dt, count, table }));
            const basis = S.hippo.basis(measure, n, ages, { theta, elapsed: counts[2] * dt });
            return { A, B, at, past: S.hippo.reconstruct(at[2], basis) };
            """,
            {
                "measure": measure,
                "n": n,
                "dt": 1 / 200,
                "u": signal[0].tolist(),
                "ages": ages.tolist(),
                "counts": [1, 77, 150],
                **({} if theta is None else {"theta": theta}),
            },
        )
        A, B = hippo.transition(measure, n, theta=theta)
        close(found["A"], A, 1e-12)
        close(found["B"], B, 1e-12)
        wanted, _ = hippo.project(signal, measure, n, at=[0, 76, 149], theta=theta, dt=1 / 200)
        close(found["at"], wanted[0])
        elapsed = {"elapsed": 0.75} if measure == "legs" else {}
        close(found["past"], hippo.reconstruct(wanted[0, 2], measure, ages, theta=theta, **elapsed))


POLES = {
    "spring": ([[-0.5, 2.9], [-0.5, -2.9]], 1.0),
    "twice the same": ([[-2.0, 0.0], [-2.0, 0.0]], 4.0),
    "six": ([[-3, 0], [-1, 0], [-0.3, 2], [-0.3, -2], [-0.5, 5], [-0.5, -5]], 12.0),
    "growing": ([[0.4, 0.0], [-1.0, 0.0]], 0.5),
    "an integrator": ([[0.0, 0.0]], 1.0),
}


@pytest.mark.parametrize("name", POLES)
@pytest.mark.parametrize("method", METHODS)
def test_systems(name: str, method: str) -> None:
    """Every rule, with poles in one place too: discrete system, its poles, and impulse, step and frequency response."""
    poles, gain = POLES[name]
    dt, alpha = 0.13, 0.7
    omega = [0.3, 1.0, 4.0]
    found = in_node(
        """
        const { poles, gain, dt, method, alpha, omega } = data;
        const system = S.systems.canonical(poles, gain);
        const discrete = S.systems.discretize(system, dt, method, alpha);
        const moved = poles.map((pole) => S.systems.mapped(pole, dt, method, alpha));
        const kick = [1, ...Array(29).fill(0)];
        return {
          system, discrete,
          impulse: S.systems.simulate(discrete, kick),
          step: S.systems.simulate(discrete, Array(30).fill(1)),
          continuous: S.systems.continuousImpulse(system, dt, 30),
          response: omega.map(S.systems.discreteResponse(discrete, dt, moved)),
          whole: omega.map((w) => S.systems.continuousResponse(poles, gain, w)),
          poles: moved,
        };
        """,
        {"poles": poles, "gain": gain, "dt": dt, "method": method, "alpha": alpha, "omega": omega},
    )
    A, B, C = (torch.tensor(found["system"][part], dtype=torch.float64) for part in "ABC")
    system = ContinuousSystem(A, B, C)
    discrete = discretize(system, dt, method, **({"alpha": alpha} if method == "gbt" else {}))
    close(found["discrete"]["A"], discrete.A)
    close(found["discrete"]["B"], discrete.B)
    close(found["impulse"], discrete.impulse_response(30))
    close(found["step"], discrete.simulate(torch.ones(30, dtype=torch.float64))[0])
    close(found["continuous"], system.impulse_response(dt * torch.arange(30, dtype=torch.float64)))
    frequencies = torch.tensor(omega, dtype=torch.float64)
    close(found["response"], torch.view_as_real(discrete.frequency_response(frequencies)))
    close(found["whole"], torch.view_as_real(system.frequency_response(frequencies)))
    ours = np.sort_complex(np.array([complex(*pole) for pole in found["poles"]]))
    theirs = np.sort_complex(discrete.poles().numpy())
    # eigenvalues that lie in one place are known to the square root of the rounding only
    np.testing.assert_allclose(ours, theirs, atol=1e-6 if name == "twice the same" else 1e-9)


def test_the_spring() -> None:
    """The page's first system is the package's mass, spring and damper."""
    found = in_node(
        """
        const system = S.systems.canonical([[-0.5, 2.958039891549808], [-0.5, -2.958039891549808]], 1);
        return S.systems.continuousImpulse(system, 0.1, 50);
        """
    )
    spring = mass_spring_damper(1.0, 9.0, 1.0)
    close(found, spring.impulse_response(0.1 * torch.arange(50, dtype=torch.float64)))


@pytest.mark.parametrize(("length", "n", "size"), [(32, 2, 8), (30, 3, 7), (17, 1, 20), (64, 8, 16)])
def test_duality(length: int, n: int, size: int) -> None:
    """The matrix, the three forms and the states against SSD; the ranks of its blocks against measured ones."""
    found = in_node(
        """
        const head = S.duality.madeUp(data.length, data.n, 11), M = S.duality.matrix(head);
        return {
          head, M, blocks: S.duality.blocks(M, data.size), recurrent: S.duality.recurrent(head),
          quadratic: S.duality.quadratic(head), chunked: S.duality.chunked(head, data.size),
        };
        """,
        {"length": length, "n": n, "size": size},
    )
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in found["head"].items()}
    log_a, dt = (tensors[name][None, :, None] for name in ("log_a", "dt"))
    B, C = (tensors[name][None, :, None] for name in "BC")
    operator = sw.SSD(log_a, B, C, size, dt=dt)
    x = tensors["x"][None, :, None]
    M = operator.matrix()[0, 0]
    close(found["M"], M, 1e-12)
    for form in operator.forms:
        y, _ = operator(x, form=form)
        close(found[form]["y"], y[0, :, 0], 1e-10)
    states = sw.insight.states(operator, x).h
    close(found["recurrent"]["states"], states[0, :, 0], 1e-10)
    for block in found["blocks"]:
        rows = slice(block["row"], block["row"] + block["rows"])
        columns = slice(block["column"], block["column"] + block["columns"])
        values = torch.linalg.svdvals(M[rows, columns])
        threshold = length * torch.finfo(torch.float64).eps * torch.linalg.matrix_norm(M, ord=2)
        assert block["rank"] == int((values > threshold).sum()), block
        assert block["diagonal"] or block["rank"] <= n
    assert semiseparable.block_ranks(M).max() <= n
    assert found["recurrent"]["sequential"] == length
    assert found["chunked"]["sequential"] == -(-length // size)
    assert found["recurrent"]["multiplications"] < found["chunked"]["multiplications"]
