"""LSSL: the laws, the equations with dense matrices, every option."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor

from statewise import hippo
from statewise.errors import ConfigError
from statewise.mixers.lssl import INITIALIZATIONS, LSSL, LSSLConfig


def published(mixer: LSSL, x: Tensor) -> Tensor:
    """Each channel by its dense matrices, one step of the generalised bilinear transform after the other."""
    c, d, readout = mixer.config, mixer.dynamics, mixer.readout
    y = torch.zeros(*x.shape, c.n_heads, dtype=torch.float64)
    eye = torch.eye(c.d_state, dtype=torch.float64)
    for channel in range(mixer.d_model):
        dt = d.log_dt[0 if c.tied_dt else channel].exp()
        A = d.A[channel] if c.learn_A else d.A
        inverse = torch.linalg.inv(eye - c.alpha * dt * A)
        A_bar, B_bar = inverse @ (eye + (1 - c.alpha) * dt * A), inverse @ (dt * d.B[channel])
        h = torch.zeros(x.shape[0], c.d_state, dtype=torch.float64)
        for t in range(x.shape[1]):
            h = h @ A_bar.T + B_bar * x[:, t, channel, None]
            y[:, t, channel] = h @ readout.C[channel].T + readout.D[channel] * x[:, t, channel, None]
    y = F.linear(F.gelu(y.flatten(-2)), mixer.output.linear.weight, mixer.output.linear.bias)
    return F.glu(y) if c.gated_output else y


OPTIONS = [{}, {"n_heads": 2, "alpha": 1.0, "learn_A": False}, {"tied_dt": True, "alpha": 0.0, "gated_output": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_equations(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(LSSLConfig(d_state=5, **options).build(3))
    x = torch.randn(2, 25, 3, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-11, rtol=1e-10)


def test_laws() -> None:
    """Beyond 16 steps the system is convolved, up to there it runs step by step."""
    torch.manual_seed(0)
    check_mixer_laws(LSSLConfig(d_state=3, n_heads=2).build(2), length=17)


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_initial_values(name: str) -> None:
    torch.manual_seed(0)
    mixer = LSSLConfig(d_state=4, initialization=name).build(3)
    fixed = LSSLConfig(d_state=4, initialization=name, learn_A=False).build(3)
    A, B, C = mixer.dynamics.A, mixer.dynamics.B, mixer.readout.C
    assert (A.shape, B.shape, C.shape) == ((3, 4, 4), (3, 4), (3, 1, 4))
    assert fixed.dynamics.A.shape == (4, 4)
    assert not any(name == "dynamics.A" for name, _ in fixed.named_parameters())
    assert "dynamics.A" in fixed.state_dict()
    assert torch.equal(A, A[:1].expand_as(A))
    if name == "random":
        assert torch.linalg.eigvals(A).real.max() < 0
        return
    want_A, want_B = hippo.transition(name, 4)
    torch.testing.assert_close(A, want_A.float().expand_as(A))
    torch.testing.assert_close(B, want_B.float().expand_as(B))
    torch.testing.assert_close(fixed.dynamics.A, want_A.float())


def test_gradients_reach_every_parameter() -> None:
    torch.manual_seed(0)
    mixer = LSSLConfig(d_state=4, bidirectional=True, n_heads=2).build(3)
    mixer(torch.randn(2, 20, 3))[0].square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_state": 7, "initialization": "fourier"}, ["d_state=7", "even"]),
        ({"initialization": "lin"}, ["'lin'", "lagt"]),
        ({"alpha": 1.5}, ["alpha=1.5"]),
        ({"alpha": "x"}, ["alpha='x'", "number"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        LSSLConfig(**options)
    assert all(word in str(error.value) for word in words), str(error.value)
