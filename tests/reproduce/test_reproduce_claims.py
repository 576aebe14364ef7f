"""Each reproduction: its quick form runs and reports, and what it measures is what it says."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_reports import figures, quick

from statewise import hippo
from statewise.errors import ConfigError, DataError
from statewise.operators.dense import DenseLTI
from statewise.reproduce import hippo_figure, reproduce
from statewise.reproduce.hippo_reconstruction import HippoSettings, reconstruction_error
from statewise.reproduce.hippo_reconstruction import noise as hippo_noise
from statewise.reproduce.long_delay import (
    DelayModel,
    DelaySettings,
    delay_error,
    gradient_norms,
    initial_system,
    noise,
    train_model,
)
from statewise.reproduce.nearest_neighbour import distances, nearest_neighbour
from statewise.systems import discretize_dense

needs_aeon = pytest.mark.skipif(find_spec("aeon") is None, reason="needs the extra tasks")


class TestHippo:
    def test_quick(self, tmp_path: Path) -> None:
        found = figures(quick("hippo", tmp_path / "run"))["relative_error"]["noise"]
        assert set(found) == {"legs", "legt", "lmu", "lagt", "fourier", "fourier_diag"}
        for by_order in found.values():
            errors = [by_order[n] for n in ("4", "16", "64")]
            assert errors == sorted(errors, reverse=True)
        assert found["legs"]["64"] < 1e-3
        assert found["legt"]["64"] == pytest.approx(found["lmu"]["64"], rel=1e-6)  # one memory in two bases

    def test_legs_is_the_best_polynomial(self) -> None:
        """In least squares over the window, up to what holding the signal in each step changes."""
        config = HippoSettings(window=512, cycles=4.0, n_signals=2)
        u = hippo_noise(config)
        _, values = reconstruction_error(config, "legs", 16, u)
        x = (torch.arange(512, dtype=torch.float64) + 0.5) / 256 - 1
        basis = torch.stack([torch.special.legendre_polynomial_p(x, i) for i in range(16)], -1)
        last = u[:, 512:].T
        best = basis @ torch.linalg.lstsq(basis, last).solution
        assert (values.T - best).abs().max() < 2e-2 * last.abs().max()

    def test_the_picture_is_the_best_cubic_at_both_times(self) -> None:
        """Least squares over what was read, the functions orthonormal over it, and the state their inner products."""
        found = hippo_figure.memory(600)
        assert [reading.steps for reading in found.readings] == [400, 600]
        for t, _, values, _, _, error in found.readings:
            x = (torch.arange(t, dtype=torch.float64) + 0.5) / t
            powers = x[:, None] ** torch.arange(4)
            past = found.signal[:t, None]
            best = (powers @ torch.linalg.lstsq(powers, past).solution)[:, 0]
            assert (values - best).abs().max() < 1e-4
            assert error == pytest.approx(float((best - past[:, 0]).norm() / past.norm()), abs=1e-6)
        basis = found.readings[-1].basis
        torch.testing.assert_close(basis.T @ basis / 600, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-4)
        torch.testing.assert_close(basis.T @ found.signal / 600, found.coefficients[-1], rtol=0, atol=1e-4)
        assert hippo_figure.plot(found).name == "hippo-memory"

    def test_noise_is_limited_to_its_band(self) -> None:
        config = HippoSettings(window=1024, cycles=8.0)
        u = hippo_noise(config)
        assert u.shape == (16, 2048)
        assert u.var() == pytest.approx(1.0, abs=0.2)
        window = torch.hann_window(2048, dtype=torch.float64)
        power = torch.fft.rfft(u * window).abs().square().sum(0)
        assert power[20:].sum() < 1e-6 * power.sum()  # 8 cycles in a window are 16 in two

    @pytest.mark.parametrize(
        ("field", "value"),
        [("orders", (5,)), ("orders", ()), ("measures", ("leg",)), ("window", 8), ("cycles", 0.0), ("time_units", 0.0)],
    )
    def test_settings(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            HippoSettings(**{field: value})


class TestDelay:
    def test_quick(self, tmp_path: Path) -> None:
        outcome = quick("delay", tmp_path / "run", 'initial=["legt","random"]', "delays=[16]", "seeds=2")
        found = figures(outcome)
        assert set(found["gradients"]) == {"legt", "random", "random-as-drawn"}
        best = found["error"]["best"]
        assert max(best["legt"]["16"]) < 0.1 * min(best["random"]["16"])
        assert len(best["random"]["16"]) == 2
        assert len(outcome.record["tables"]) == 4  # type: ignore[index]

    @pytest.mark.parametrize("name", ["legs", "legt", "lin", "random"])
    def test_gradient_norms_by_autograd(self, name: str) -> None:
        config = DelaySettings(d_state=6, window=8)
        norms = gradient_norms(name, config)
        A, B = initial_system(name, config, torch.Generator().manual_seed(0))
        A, B = discretize_dense(A, B, torch.tensor(1 / 8, dtype=torch.float64), "bilinear")
        u = torch.zeros(1, 65, 1, dtype=torch.float64, requires_grad=True)
        states, _ = DenseLTI(A[None], B[None], torch.eye(6, dtype=torch.float64)[None])(u)
        gradient = torch.stack([torch.autograd.grad(x, u, retain_graph=True)[0][0, :, 0] for x in states[0, -1, 0]])
        expected = gradient.norm(dim=0).flip(0)
        torch.testing.assert_close(norms, expected / expected.max(), rtol=1e-9, atol=1e-12)

    def test_gradient_of_legs_with_its_1_over_t(self) -> None:
        """By impulses; it does not fade with the lag (proposition 5 of HiPPO)."""
        norms = gradient_norms("legs-scaled", DelaySettings(d_state=8, window=16))
        impulses = torch.eye(129, dtype=torch.float64)
        expected = hippo.project(impulses, "legs", 8, at=[-1])[0][:, 0].norm(dim=-1).flip(0)
        torch.testing.assert_close(norms, expected / expected.max(), rtol=1e-9, atol=1e-12)
        assert norms.min() > 0.2

    def test_random_as_drawn_grows(self) -> None:
        norms = gradient_norms("random-as-drawn", DelaySettings(window=32))
        assert norms[0] == 1
        assert norms[-1] > 10

    def test_initial_systems_have_the_abscissa(self) -> None:
        config = DelaySettings(d_state=16)
        generator = torch.Generator().manual_seed(0)
        for name, abscissa in (("random", -1.0), ("legs", -1.0), ("lin", -0.5)):
            A, B = initial_system(name, config, generator)
            assert B.shape == (16,)
            assert torch.linalg.eigvals(A).real.max() == pytest.approx(abscissa, abs=1e-6)

    def test_noise(self) -> None:
        u = noise(4, 192, 16, torch.Generator().manual_seed(0)).double()
        assert u.square().mean(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
        power = torch.fft.rfft(u).abs().square()
        assert power[:, 13:].sum() < 1e-8 * power.sum()
        assert power[:, 1:13].min() > 0

    def test_only_what_is_learned_is_learned(self) -> None:
        config = DelaySettings(d_state=8, steps=2, period=8)
        for learned in (False, True):
            model = DelayModel("legt", config, 16, learned=learned, seed=0)
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            train_model(model, config, 16, seed=0)
            changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
            assert changed == ({"A", "B", "C", "D", "log_dt"} if learned else {"C", "D"})

    def test_the_best_readout_remembers_the_delay(self) -> None:
        """LegT with its window on the delay holds it; nothing remembers what no state has."""
        config = DelaySettings(d_state=32, period=16)
        model = DelayModel("legt", config, 32, learned=False, seed=0)
        assert delay_error(model, config, 32, best_readout=True) < 1e-3
        assert 0.5 < delay_error(model, config, 32, best_readout=False) < 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [("initial", ("legz",)), ("d_state", 7), ("seeds", 0), ("delays", ()), ("radius", 0.0), ("period", 1)],
    )
    def test_settings(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field.rstrip("s")):
            DelaySettings(**{field: value})


@needs_aeon
class TestNearestNeighbour:
    def test_distances_are_dynamic_time_warping(self) -> None:
        generator = np.random.default_rng(0)
        rows = [generator.normal(size=(12, 2)) for _ in range(3)]
        for window, band in ((None, 12), (0.25, 3)):
            found = distances(rows, rows, window, lambda n: None)
            expected = [[warping(a, b, band) for b in rows] for a in rows]
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(
            distances(rows, rows, 0.0, lambda n: None), [[((a - b) ** 2).sum() for b in rows] for a in rows]
        )

    def test_it_finds_shifted_shapes_and_chooses_its_window(self) -> None:
        time = np.linspace(0, 1, 40)[:, None]
        generator = np.random.default_rng(1)

        def bump(at: float, sign: float) -> np.ndarray:
            return sign * np.exp(-(((time - at) / 0.05) ** 2)) + 0.01 * generator.normal(size=(40, 1))

        places = [0.2, 0.35, 0.5, 0.65, 0.8]
        train = [bump(at, sign) for at in places for sign in (1.0, -1.0)]
        test = [bump(at + 0.07, sign) for at in places for sign in (1.0, -1.0)]
        classes = np.array([0, 1] * 5)
        threads = torch.get_num_threads()
        told: list[tuple[int, int]] = []
        found = nearest_neighbour(
            train, classes, test, classes, windows=(0.0, 0.3), progress=lambda done, total: told.append((done, total))
        )
        assert torch.get_num_threads() == threads
        assert found["full"]["accuracy"] == 1.0
        assert found["windowed"]["window"] in (0.0, 0.3)
        assert found["windowed"]["left_out"]["0.3"] == 1.0
        assert told[-1] == (40, 40)

    def test_in_a_reproduction(self, tmp_path: Path) -> None:
        outcome = quick("acsf1", tmp_path / "run", "dtw_windows=[0.1]", "max_rows=6")
        found = figures(outcome)["nearest_neighbour"]
        assert (found["train_rows"], found["test_rows"]) == (12, 6)  # six of training and of validation
        assert outcome.record["bars"] == []  # type: ignore[index]


def test_without_aeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "statewise\[tasks\]"'):
        reproduce("acsf1", tmp_path / "run", plots=False)


def warping(a: np.ndarray, b: np.ndarray, band: int) -> float:
    """The definition: the cheapest monotone path of squared differences within ``band`` steps of the diagonal."""
    cost = np.full((len(a) + 1, len(b) + 1), math.inf)
    cost[0, 0] = 0
    for i in range(len(a)):
        for j in range(max(0, i - band), min(len(b), i + band + 1)):
            before = min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
            cost[i + 1, j + 1] = ((a[i] - b[j]) ** 2).sum() + before
    return float(cost[-1, -1])
