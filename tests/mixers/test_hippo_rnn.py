"""The HiPPO-RNN: its published equations in numpy, for every measure and method, the laws, and what it remembers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from law_signals import prepared
from laws import check_mixer_laws
from scipy import signal
from torch import Tensor

from statewise import hippo
from statewise.errors import ConfigError
from statewise.mixers.hippo_rnn import HiPPORNN, HiPPORNNConfig

OPTIONS: list[dict[str, Any]] = [
    {},
    {"d_memory": 2, "d_hidden": 3},
    {"method": "euler", "gated": False},
    {"method": "backward_euler"},
    {"measure": "legt", "theta": 12.0},
    {"measure": "fourier", "theta": 20, "method": "zoh", "d_memory": 2},
    {"measure": "lagt", "theta": 20, "method": "euler"},
    {"measure": "lmu", "theta": 9, "method": "backward_euler", "d_hidden": 7},
]


def build(**options: Any) -> HiPPORNN:
    torch.manual_seed(0)
    return prepared(HiPPORNNConfig(**{"d_state": 6, **options}).build(4))


def published(mixer: HiPPORNN, x: Tensor) -> np.ndarray:
    """The published cell, for one row after the other, with scipy's solvers."""
    c = mixer.config
    A, B = (m.numpy() for m in hippo.transition(c.measure, c.d_state, theta=c.theta))
    eye, weights = np.eye(c.d_state), {name: p.detach().numpy() for name, p in mixer.named_parameters()}

    def linear(name: str, value: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ value + weights[f"{name}.bias"]

    def transition(t: int) -> tuple[np.ndarray, np.ndarray]:
        if c.measure != "legs":
            rule = {"backward_euler": "backward_diff"}.get(c.method, c.method)
            A_bar, B_bar, *_ = signal.cont2discrete((A, B[:, None], eye[:1], 0), 1.0, rule)
            return A_bar, B_bar[:, 0]
        late = {"euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}[c.method]
        left = eye - late * A / t
        return np.linalg.solve(left, eye + (1 - late) * A / t), np.linalg.solve(left, B / t)

    rows = []
    for row in x.numpy():
        h, m, ys = np.zeros(mixer.d_hidden), np.zeros((c.d_memory, c.d_state)), []
        for t, inputs in enumerate(row):
            u = linear("in_proj", np.concatenate([inputs, h]))
            if t == 0 and c.measure == "legs":
                m = np.pad(u[:, None], ((0, 0), (0, c.d_state - 1)))
            else:
                A_bar, B_bar = transition(t)
                m = m @ A_bar.T + u[:, None] * B_bar
            seen = np.concatenate([inputs, m.reshape(-1)])
            new = np.tanh(linear("hidden_proj", seen))
            g = 1 / (1 + np.exp(-linear("gate_proj", seen))) if c.gated else 1.0
            h = (1 - g) * h + g * new
            ys.append(h if mixer.out_proj is None else linear("out_proj", h))
        rows.append(ys)
    return np.array(rows)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_cell(options: dict[str, Any]) -> None:
    mixer = build(**options)
    x = torch.randn(2, 25, 4, dtype=torch.float64)
    with torch.no_grad():
        np.testing.assert_allclose(mixer(x)[0].numpy(), published(mixer, x), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[2], OPTIONS[5]], ids=str)
def test_laws(options: dict[str, Any]) -> None:
    check_mixer_laws(HiPPORNNConfig(**{"d_state": 4, **options}).build(4), length=7)


def test_legs_remembers_the_beginning() -> None:
    """The mean of all that it saw is its first coefficient, however long ago it was."""
    mixer = HiPPORNNConfig(d_state=8).build(1).double()
    with torch.no_grad():
        mixer.in_proj.weight.copy_(torch.tensor([[1.0, 0.0]]))  # the input alone is remembered
    x = torch.randn(1, 300, 1, dtype=torch.float64)
    with torch.no_grad():
        _, state = mixer(x, mixer.initial_state(1))
    assert state.memory[0, 0, 0] == pytest.approx(x.mean().item(), abs=0.02)
    assert state.steps.tolist() == [300]


def test_errors() -> None:
    with pytest.raises(ConfigError, match="measure='legt' needs theta"):
        HiPPORNNConfig(measure="legt")
    with pytest.raises(ConfigError, match="method='zoh' is for a window, and 'legs' has none"):
        HiPPORNNConfig(method="zoh")
    with pytest.raises(ConfigError, match="measure 'legs' remembers everything; leave it out"):
        HiPPORNNConfig(theta=3.0)
    with pytest.raises(ConfigError, match=r"multiplies the memory by .* at each step; use method='bilinear'"):
        HiPPORNNConfig(measure="legt", theta=3.0, method="euler", d_state=16).build(4)
