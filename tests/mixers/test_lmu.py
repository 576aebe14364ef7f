"""The LMU: its cell against keras-lmu's equations in numpy, its parallel form against the same, and the laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from law_signals import prepared
from laws import check_mixer_laws
from scipy.linalg import expm
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.mixers.lmu import LMU, LMUConfig, LMUState, ParallelLMU
from statewise.mixers.rate import set_rate


def keras_lmu(mixer: LMU | ParallelLMU, x: Tensor, dt: float = 1.0) -> np.ndarray:
    """keras-lmu's LMUCell with a SimpleRNNCell, and its recurrent connections left out where the mixer has none.

    A and B are theirs: meshgrid, R = 2 i + 1, zero-order hold by the exponential of the joined matrix. Vectors are rows
    and matrices multiply from the right, as there; memory is (memory_d, order), flattened for the hidden cell.
    """
    c = mixer.config
    n, d = c.d_state, c.d_memory
    Q = np.arange(n, dtype=np.float64)
    R = (2 * Q + 1)[:, None]
    j, i = np.meshgrid(Q, Q)
    A = np.where(i < j, -1, (-1.0) ** (i - j + 1)) * R / c.theta
    B = (-1.0) ** Q[:, None] * R / c.theta
    joined = expm(np.vstack([np.hstack([A, B]), np.zeros((1, n + 1))]) * dt)
    A_bar, B_bar = joined[:n, :n].T, joined[:n, n:].T

    def kernel(name: str) -> np.ndarray | None:
        layer = getattr(mixer, name, None)
        return None if layer is None else layer.weight.detach().double().numpy().T

    bias = mixer.memory_to_hidden.bias.detach().double().numpy()
    outputs = []
    for row in x.double().numpy():
        m, h, ys = np.zeros((d, n)), np.zeros(mixer.d_hidden), []
        for inputs in row:
            u = inputs @ kernel("input_to_memory")
            if c.hidden_to_memory:
                u = u + h @ kernel("hidden_to_memory")
            if c.memory_to_memory:
                u = u + m.reshape(-1) @ kernel("memory_to_memory")
            m = m @ A_bar + u[:, None] @ B_bar
            h_in = m.reshape(-1) @ kernel("memory_to_hidden") + bias
            if c.input_to_hidden:
                h_in = h_in + inputs @ kernel("input_to_hidden")
            if not c.parallel:
                h_in = h_in + h @ kernel("hidden_to_hidden")
            h = np.tanh(h_in)
            ys.append(h)
        outputs.append(ys)
    y = np.array(outputs)
    if mixer.out_proj is not None:
        y = y @ kernel("out_proj") + mixer.out_proj.bias.detach().double().numpy()
    return y


OPTIONS = [
    {},
    {"d_memory": 2, "hidden_to_memory": True, "memory_to_memory": True, "input_to_hidden": True, "d_hidden": 5},
    {"d_memory": 3, "memory_to_memory": True},
    {"parallel": True, "d_memory": 2},
    {"parallel": True, "input_to_hidden": True, "d_hidden": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_keras_lmu(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(LMUConfig(theta=11.5, d_state=6, **options).build(4))
    x = torch.randn(2, 40, 4, dtype=torch.float64)
    with torch.no_grad():
        y = mixer(x)[0].numpy()
    np.testing.assert_allclose(y, keras_lmu(mixer, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(("options", "length"), [(OPTIONS[0], 7), (OPTIONS[1], 7), (OPTIONS[4], 17)], ids=str)
def test_laws(options: dict, length: int) -> None:
    """Beyond 16 steps the parallel memory is convolved."""
    torch.manual_seed(0)
    check_mixer_laws(LMUConfig(theta=9, d_state=4, **options).build(4), length=length)


def test_the_memory_holds_the_last_theta_steps() -> None:
    """A large memory of a smooth signal gives it back theta steps later: that is what A and B are for."""
    mixer = LMUConfig(theta=50, d_state=12, parallel=True, activation="relu").build(1).double()
    t = torch.arange(300, dtype=torch.float64)
    signal = torch.sin(t / 20)
    with torch.no_grad():
        mixer.input_to_memory.weight.fill_(1.0)
        state = mixer.initial_state(1)
        _, state = mixer(signal[None, :, None], state)
    delayed = state.h.flatten().sum()  # the shifted Legendre polynomials at their far end are all 1
    held = signal[299 - 50 : 301 - 50].mean()  # inputs are held for a step, and 50 steps ago one gave way to the next
    assert abs(delayed - held) < 1e-3


def test_parameters() -> None:
    torch.manual_seed(0)
    mixer = LMUConfig(theta=20, d_state=8, d_memory=2, hidden_to_memory=True, memory_to_memory=True).build(6)
    shapes = {name: tuple(p.shape) for name, p in mixer.named_parameters()}
    assert shapes == {
        "input_to_memory.weight": (2, 6),
        "memory_to_hidden.weight": (6, 16),
        "memory_to_hidden.bias": (6,),
        "hidden_to_hidden.weight": (6, 6),
        "hidden_to_memory.weight": (2, 6),
        "memory_to_memory.weight": (2, 16),
    }
    torch.testing.assert_close(mixer.hidden_to_hidden.weight @ mixer.hidden_to_hidden.weight.T, torch.eye(6))
    torch.testing.assert_close(mixer.memory_to_memory.weight @ mixer.memory_to_memory.weight.T, torch.eye(2))
    assert (mixer.memory_to_hidden.bias == 0).all()
    assert mixer.input_to_memory.weight.abs().max() <= (6 / (12 + 2)) ** 0.5
    projected = LMUConfig(theta=20, d_state=8, d_hidden=64).build(64)
    assert projected.out_proj is None
    wider = LMUConfig(theta=20, d_state=8, d_hidden=128).build(64)
    unscaled = wider.out_proj.weight.std()
    wider.reset_parameters(residual_scale=0.1)
    assert 0.09 < wider.out_proj.weight.std() / unscaled < 0.11


@pytest.mark.parametrize("parallel", [False, True])
def test_rate_is_a_shorter_window(parallel: bool) -> None:
    torch.manual_seed(0)
    mixer = LMUConfig(theta=20, d_state=4, parallel=parallel).build(3).double()
    x = torch.randn(1, 30, 3, dtype=torch.float64)
    set_rate(mixer, 2)
    with torch.no_grad():
        np.testing.assert_allclose(mixer(x)[0].numpy(), keras_lmu(mixer, x, dt=2.0), atol=1e-12)


@pytest.mark.parametrize("parallel", [False, True])
def test_autocast_keeps_the_memory_in_float32(parallel: bool) -> None:
    torch.manual_seed(0)
    mixer = LMUConfig(theta=40, d_state=16, parallel=parallel).build(8)
    x = torch.randn(2, 60, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    want, _ = mixer(x)
    assert all(leaf.dtype == torch.float32 for leaf in state)
    assert (y - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("parallel", [False, True])
def test_a_bfloat16_mixer_keeps_its_memory_wide(parallel: bool) -> None:
    torch.manual_seed(0)
    mixer = LMUConfig(theta=40, d_state=16, parallel=parallel).build(8).to(torch.bfloat16)
    y, state = mixer(torch.randn(2, 9, 8, dtype=torch.bfloat16), mixer.initial_state(2))
    assert y.dtype == torch.bfloat16
    assert all(leaf.dtype == torch.float32 for leaf in state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"theta": 0}, ["theta=0"]),
        ({"d_state": 0}, ["d_state=0"]),
        ({"d_memory": 0}, ["d_memory=0"]),
        ({"d_hidden": 0}, ["d_hidden=0"]),
        ({"activation": "swish"}, ["swish"]),
        ({"activation": ["tanh"]}, ["['tanh']"]),
        ({"parallel": True, "hidden_to_memory": True}, ["hidden_to_memory", "parallel"]),
        ({"parallel": True, "memory_to_memory": True}, ["memory_to_memory", "parallel"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        LMUConfig(**{"theta": 10, **options})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_inputs_and_states_are_refused() -> None:
    mixer = LMUConfig(theta=10, d_state=4).build(3)
    with pytest.raises(InputError, match=r"\(batch, length, 3\)"):
        mixer(torch.randn(2, 5, 4))
    with pytest.raises(InputError, match="LMUState"):
        mixer(torch.randn(2, 5, 3), (torch.zeros(2, 1, 4), torch.zeros(2, 3)))
    with pytest.raises(InputError, match=r"LMU needs state.memory of shape \(2, 1, 4\)"):
        mixer(torch.randn(2, 5, 3), LMUState(torch.zeros(2, 4), torch.zeros(2, 3)))
