"""LFM2's gated short convolution: the laws, and its equation as a sum."""

from __future__ import annotations

import laws
import pytest
import torch
from law_signals import prepared, same, through

import statewise as sw
from statewise.mixers.gated_convolution import GatedConvolution

CONFIGS = {
    "plain": sw.GatedConvolutionConfig(),
    "with biases": sw.GatedConvolutionConfig(n_taps=4, bias=True),
    "one tap": sw.GatedConvolutionConfig(n_taps=1, bias=True),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "batch"), [(1, 1), (17, 3), (70, 2)])
def test_laws(name: str, length: int, batch: int) -> None:
    laws.check_mixer_laws(CONFIGS[name].build(6), length=length, batch=batch)


@pytest.mark.parametrize("name", CONFIGS)
def test_is_its_equation(name: str) -> None:
    torch.manual_seed(0)
    mixer = prepared(CONFIGS[name].build(6))
    assert isinstance(mixer, GatedConvolution)
    bias = {name: parameter for name, parameter in mixer.named_parameters() if name.endswith("bias")}
    x = torch.randn(2, 19, 6, dtype=torch.float64)
    B, C, u = (x @ mixer.in_proj.weight.T + bias.get("in_proj.bias", 0)).split(6, -1)
    outputs = []
    for t in range(x.shape[1]):
        y = sum(tap * (B * u)[:, t - i] for i, tap in enumerate(mixer.convolution.weight.T) if t >= i)
        outputs.append(C[:, t] * (y + bias.get("convolution.bias", 0)))
    expected = torch.stack(outputs, 1) @ mixer.out_proj.weight.T + bias.get("out_proj.bias", 0)
    same(mixer(x)[0], expected, 1e-12, "from rest")
    same(through(mixer, x.split((9, 1, 9), 1), mixer.initial_state(2)), expected, 1e-12, "in pieces")
