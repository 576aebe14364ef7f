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
from torch.utils._python_dispatch import TorchDispatchMode

from statewise import hippo
from statewise.errors import ConfigError, InputError
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
    x = torch.randn(1, 60, 4)
    for n, dtype in ((64, torch.float32), (17, torch.float32), (17, torch.bfloat16), (47, torch.float64)):
        layer = HiPPORNNConfig(method="euler", d_state=n).build(4).to(dtype)
        with pytest.raises(InputError, match=r"multiplies rounding errors by .* in its first steps, too much for"):
            layer(x.to(dtype))
    layer = HiPPORNNConfig(method="euler", d_state=16).build(4)
    torch.testing.assert_close(layer(x)[0], layer.double()(x.double())[0].float(), atol=1e-2, rtol=0)


class Copies(TorchDispatchMode):
    """Counts the copies from the CPU to another device, which a CUDA graph cannot record."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.__name__.partition(".")[0] in ("_to_copy", "copy_") and isinstance(found, Tensor):
            self.count += any(isinstance(m, Tensor) and m.device != found.device for m in args)
        return found


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[5]], ids=str)
def test_the_system_lies_beside_the_parameters(options: dict[str, Any]) -> None:
    """On their device, in float64 in any dtype, and with its numbers also behind a device that has none."""
    mixer = HiPPORNNConfig(**{"d_state": 6, **options}).build(4)
    there, x = mixer.to("meta"), torch.randn(2, 3, 4, device="meta")
    assert {m.device for m in there.placed} == {there.in_proj.weight.device} == {torch.device("meta")}
    with Copies() as copies:
        there(x)
    assert copies.count == 0
    again = there.to(torch.bfloat16).to_empty(device="cpu")
    again.reset_parameters()
    assert again.in_proj.weight.dtype == torch.bfloat16
    for got, want in zip(again.placed, mixer.system):
        assert got.dtype == torch.float64
        assert got.equal(want)
    assert again(torch.randn(2, 3, 4, dtype=torch.bfloat16))[0].isfinite().all()


def test_parameters_that_were_put_in_by_name_need_no_conversion() -> None:
    """``load_state_dict(assign=True)`` converts nothing, so the system is not where they are."""
    mixer = build()
    with torch.device("meta"):
        other = HiPPORNNConfig(d_state=6).build(4)
    other.load_state_dict(mixer.state_dict(), assign=True)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(other(x)[0], mixer(x)[0], rtol=0, atol=0)
