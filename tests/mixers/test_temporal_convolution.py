"""The temporal convolutional network: PyTorch's dilated convolutions, the laws, and what a stack of levels sees."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws

from statewise.errors import ConfigError
from statewise.mixers.temporal_convolution import TCNConfig, tcn_layers
from statewise.models.regressor import SequenceRegressorConfig

CONFIGS = [
    TCNConfig(),
    TCNConfig(dilation=4),
    TCNConfig(n_taps=1),
    TCNConfig(n_taps=4),
    TCNConfig(n_taps=7, dilation=2),
    TCNConfig(n_taps=2, dilation=9, n_convolutions=3, activation="gelu"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_laws(config: TCNConfig) -> None:
    check_mixer_laws(config.build(4), length=7)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equal_to_pytorchs_convolutions(config: TCNConfig) -> None:
    torch.manual_seed(0)
    mixer = prepared(config.build(5))
    x = torch.randn(2, 40, 5, dtype=torch.float64)
    z = x.mT
    for layer in mixer.convolutions:
        weight = layer.weight.unflatten(1, (config.n_taps, 5)).flip(1).permute(0, 2, 1)
        z = F.conv1d(F.pad(z, (mixer.reach, 0)), weight, layer.bias, dilation=config.dilation)
        z = z.relu() if config.activation == "relu" else F.gelu(z)
    torch.testing.assert_close(mixer(x)[0], z.mT, atol=1e-12, rtol=1e-12)


def test_what_a_stack_sees() -> None:
    """4 (2^n - 1) + 1 steps for three taps: the input one step further back has no gradient."""
    torch.manual_seed(0)
    layers = tcn_layers(3)
    assert [layer.dilation for layer in layers] == [1, 2, 4]
    config = SequenceRegressorConfig(d_input=1, d_output=1, d_model=8, layers=layers, pooling=None)
    model = config.build().double().eval()
    x = torch.randn(1, 60, 1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0][0, -1].sum(), x)
    assert 60 - int(gradient.flatten().nonzero()[0]) == 4 * (2**3 - 1) + 1


def test_dropout_and_residual_scale() -> None:
    torch.manual_seed(0)
    mixer = TCNConfig(dropout=0.5).build(16)
    assert (mixer(torch.randn(2, 50, 16))[0] == 0).float().mean() > 0.5
    mixer.reset_parameters(residual_scale=0.0)
    assert not mixer.convolutions[-1].weight.any()
    assert mixer.convolutions[0].weight.any()


def test_errors() -> None:
    with pytest.raises(ConfigError, match="dropout"):
        TCNConfig(dropout=1.0)
    with pytest.raises(ConfigError, match="dilation"):
        TCNConfig(dilation=0)
    with pytest.raises(ConfigError, match="n_layers of at least 1, got 0"):
        tcn_layers(0)
