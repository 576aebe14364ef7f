"""Layers and the training loss where Triton was asked for: their kernels are reached, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import MIXERS
from interpreted import needs_interpreter
from torch import Tensor, nn

import statewise as sw
from statewise import kernels
from statewise.kernels import gpu
from statewise.kernels.linear_cross_entropy import linear_cross_entropy

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory")]
REACHED = {
    "Mamba": {"selective_scan", "short_convolution"},
    "Mamba-2": {"ssd", "short_convolution", "gated_rms_norm"},
    "S4": {"cauchy", "fft_convolution"},
    "S4D": {"vandermonde", "fft_convolution"},
    "GSS": {"vandermonde", "fft_convolution"},
    "H3": {"vandermonde", "fft_convolution", "short_convolution"},
    "linear attention": {"ssd"},
}


def outputs_and_gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    y = layer(x)[0]
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], materialize_grads=True)]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kernels whose Triton was asked for."""
    names: set[str] = set()
    module = gpu.module

    def noted(kernel: str) -> Any:
        names.add(kernel)
        return module(kernel)

    monkeypatch.setattr(gpu, "module", noted)
    return names


@pytest.mark.parametrize("name", REACHED)
def test_a_layer_in_triton_is_the_layer_in_pytorch(name: str, reached: set[str]) -> None:
    torch.manual_seed(0)
    config = sw.S4Config(d_state=32) if name == "S4" else MIXERS[name]  # few states are squared instead
    layer = config.build(8)
    x = torch.randn(1, 20, 8, requires_grad=True)
    found = []
    for path in ("torch", "triton"):
        with kernels.use(path):
            found.append(outputs_and_gradients(layer, x))
        assert reached == (set() if path == "torch" else REACHED[name])
    for got, want in zip(found[1], found[0]):
        torch.testing.assert_close(got, want, atol=2e-5 * max(1.0, float(want.detach().abs().max())), rtol=1e-4)


def test_the_training_loss_is_reached(reached: set[str]) -> None:
    x, weight = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    with kernels.use("triton"):
        linear_cross_entropy(x, weight, torch.arange(5)).backward()
    assert reached == {"linear_cross_entropy"}
