"""Every kernel compared with its definition in float64: with numbers of a new model, and at the ends of their range."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise.native as native
from statewise.benchmark.case import OURS, OURS_WITHOUT_C, with_kernels

Inputs = tuple[list[Tensor], dict[str, Any]]  # tensors, and what else the function takes


@dataclass(frozen=True)
class Kernel:
    """A public function of a folder of statewise/kernels; NAME_reference beside it is its definition, or else its
    PyTorch path in float64.

    ranges:  by name, steps or rows -> its inputs, of float32 or complex64
    options: for both; ``ours``: what the definition does not have
    """

    name: str
    ranges: dict[str, Callable[[int], Inputs]]
    options: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)

    def errors(self, values: str, *, quick: bool = False) -> dict[str, dict[str, float]]:
        """side -> "largest" and "mean" |y - y64| over the largest |y64| of a tensor, the worst of all outputs; and
        "gradients", the largest of them."""
        module = importlib.import_module(f"statewise.kernels.{self.name}")
        function = getattr(module, self.name)
        definition = getattr(module, f"{self.name}_reference", None) or with_kernels("torch", function)
        torch.manual_seed(0)
        tensors, options = self.ranges[values](9 if quick else 200)
        wide = [
            m.to(torch.promote_types(m.dtype, torch.float64)) if m.is_floating_point() or m.is_complex() else m
            for m in tensors
        ]
        known = _values_and_gradients(functools.partial(definition, **self.options, **_widened(options)), wide)
        sides = {}
        for side in (OURS, OURS_WITHOUT_C) if native.available() else (OURS_WITHOUT_C,):
            run = functools.partial(function, **self.options, **self.ours, **options)
            both_ways = with_kernels("c" if side == OURS else "torch", _values_and_gradients)
            found = both_ways(run, tensors)
            relative = [
                [_relative(one, other) for one, other in zip(*both, strict=True)]
                for both in zip(found, known, strict=True)
            ]
            sides[side] = {
                "largest": max(largest for largest, _ in relative[0]),
                "mean": max(mean for _, mean in relative[0]),
                **({"gradients": max(largest for largest, _ in relative[1])} if relative[1] else {}),
            }
        return sides


def _widened(options: dict[str, Any]) -> dict[str, Any]:
    return {name: m.double() if isinstance(m, Tensor) and m.is_floating_point() else m for name, m in options.items()}


def _relative(found: Tensor, exact: Tensor) -> tuple[float, float]:
    difference, scale = (found - exact).abs(), exact.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float(difference.max() / scale), float(difference.mean() / scale)


def _values_and_gradients(function: Callable[..., Any], tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, and the gradients of a fixed sum of them, where there are some."""
    variables = [m.detach().clone().requires_grad_(m.is_floating_point() or m.is_complex()) for m in tensors]
    outputs = [m for m in pytree.tree_leaves(function(*variables)) if isinstance(m, Tensor)]
    if not all(m.requires_grad for m in outputs):
        return [m.detach() for m in outputs], []
    weights = [torch.linspace(-1, 1, m.numel(), dtype=torch.float64).view(m.shape).to(m.dtype) for m in outputs]
    parts = [(m * weight).real.sum() if m.is_complex() else (m * weight).sum() for m, weight in zip(outputs, weights)]
    asked = [m for m in variables if m.requires_grad]
    gradients = torch.autograd.grad(torch.stack(parts).sum(), asked, allow_unused=True)
    return [m.detach() for m in outputs], [g for g in gradients if g is not None]


def _scan(largest_step: float, length: int) -> Inputs:
    """Steps of time up to largest_step: with 16 states the strongest decay of a step is e^(-16 largest_step)."""
    u, gate = torch.randn(2, 1, length, 24)
    dt = torch.rand(1, length, 24) * largest_step
    B, C = torch.randn(2, 1, length, 1, 16)
    A = -torch.arange(1.0, 17).repeat(24, 1)
    return [u, dt, A, B, C, torch.randn(1, 24, 16)], {"D": torch.ones(24), "gate": gate}


def _complex_scan(largest_phase: float, length: int) -> Inputs:
    (u, dt, A, B, C, h0), options = _scan(1.0, length)
    A = torch.complex(A / 16, torch.linspace(0, largest_phase, 16).repeat(24, 1))
    return [u, dt, A, B.to(A.dtype), C.to(A.dtype), torch.stack([h0, h0], -1)], options


def _ssd(strongest: float, length: int) -> Inputs:
    B, C = torch.randn(2, 1, length, 1, 32)
    log_a = -torch.rand(1, length, 4) * strongest
    return [torch.randn(1, length, 4, 16), log_a, B, C, torch.randn(1, 4, 16, 32)], {"D": torch.ones(4)}


def _delta_rule(strongest: float, length: int) -> Inputs:
    """Keys of length 1, beta below 1, and a decay for each channel."""
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, length, 4, 16), dim=-1)
    log_a = -torch.rand(1, length, 4, 16) * strongest
    beta = torch.rand(1, length, 4)
    return [torch.randn(1, length, 4, 12), q, k, log_a, torch.randn(1, 4, 12, 16)], {"beta": beta}


def _linear_scan(decay: float, length: int) -> Inputs:
    a = 1 - torch.rand(2, length, 20) * decay
    return [a, torch.randn(2, length, 20), torch.randn(2, 20)], {}


def _poles(n: int, fastest: float) -> Tensor:
    """In the left half-plane, as S4D-Lin has them."""
    return torch.complex(torch.full((8, n), -0.5), torch.linspace(0, fastest, n).repeat(8, 1))


def _diagonal_scan(fastest: float, length: int) -> Inputs:
    A = (_poles(16, fastest) * 0.1).exp()
    B, C = torch.randn(2, 8, 16, dtype=A.dtype)
    return [torch.randn(2, length, 8, 1), A, B, C, torch.ones(8), torch.randn(2, 8, 1, 16, 2)], {"lengths": None}


def _vandermonde(fastest: float, length: int) -> Inputs:
    A = (_poles(32, fastest) * 0.01).exp()
    return [torch.randn(8, 32, dtype=A.dtype), A], {"length": length}


def _cauchy(fastest: float, length: int) -> Inputs:
    v = torch.randn(8, 2, 32, dtype=torch.complex64)
    turns = torch.arange(length) / length * 2 * torch.pi
    z = torch.complex(torch.full((length,), 0.01), fastest * (turns / 2 - 1.5).tan().clamp(-20, 20))
    return [v, z, _poles(32, fastest)], {}


def _short_convolution(scale: float, length: int) -> Inputs:
    x = torch.randn(2, length, 20) * scale
    return [x, torch.randn(20, 4), torch.randn(2, 3, 20)], {"bias": torch.randn(20)}


def _rows(scale: float, length: int) -> Inputs:
    return [torch.randn(length, 96) * scale, torch.rand(96) + 0.5], {}


def _gated_rows(scale: float, length: int) -> Inputs:
    (x, weight), _ = _rows(scale, length)
    return [x, torch.randn(length, 96) * scale, weight], {}


def _fft_convolution(decay: float, length: int) -> Inputs:
    taps = torch.randn(20, length) * torch.exp(-decay * torch.arange(length))
    return [torch.randn(2, length, 20), taps], {}


def _linear(scale: float, length: int) -> Inputs:
    return [torch.randn(length, 96) * scale, torch.randn(40, 96), torch.randn(40)], {}


def _cross_entropy(scale: float, length: int) -> Inputs:
    return [torch.randn(length, 32) * scale, torch.randn(259, 32), torch.randint(259, (length,))], {}


def _gelu(scale: float, length: int) -> Inputs:
    return [torch.randn(length, 96) * scale], {}


def _two(
    make: Callable[[float, int], Inputs], usual: float, most: float, what: str
) -> dict[str, Callable[[int], Inputs]]:
    return {what.format(value): functools.partial(make, value) for value in (usual, most)}


def _kalman(width: float, length: int) -> Inputs:
    """A turning state of two numbers, of which one is observed; ``width`` is the prior's standard deviation."""
    A = 0.98 * torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    G = torch.cat([A[:1], A])[None, None]  # C A, A
    N = torch.tensor([[0.5, 0.3, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.3]])[None, None]
    mean, factor = torch.zeros(1, 2), width * torch.eye(2)[None]
    return [torch.randn(4, length, 1), G, N, torch.zeros(1, 1, 3), mean, factor, mean.clone(), factor.clone()], {}


KERNELS = (
    Kernel("selective_scan", _two(_scan, 0.1, 87 / 16, "dt up to {:.3g}, A from -1 to -16")),
    Kernel("selective_scan", _two(_complex_scan, 1.0, 100.0, "complex, a phase of up to {:g} a step")),
    Kernel("selective_scan", _two(_complex_scan, 1.0, 100.0, "the exact hold, phase {:g}"), {"method": "zoh"}),
    Kernel("ssd", _two(_ssd, 0.1, 87.0, "decays of e^-{:g} and less a step")),
    Kernel("diagonal_rank_one", _two(_delta_rule, 0.1, 87.0, "the delta rule, decays of e^-{:g} and less a step")),
    Kernel("linear_scan", _two(_linear_scan, 0.1, 2.0, "1 - a up to {:g}")),
    Kernel("diagonal_scan", _two(_diagonal_scan, 1.0, 100.0, "poles up to 0.1 x {:g}i")),
    Kernel("vandermonde", _two(_vandermonde, 100.0, 1e4, "poles up to 0.01 x {:g}i")),
    Kernel("cauchy", _two(_cauchy, 100.0, 1e4, "poles up to {:g}i")),
    Kernel("fft_convolution", _two(_fft_convolution, 0.01, 0.0, "taps that fall by e^-{:g} a step")),
    Kernel("short_convolution", _two(_short_convolution, 1.0, 30.0, "x of size {:g}, SiLU"), {"activation": "silu"}),
    Kernel("rms_norm", _two(_rows, 1.0, 1e4, "x of size {:g}")),
    Kernel("gated_rms_norm", _two(_gated_rows, 1.0, 30.0, "x and gate of size {:g}")),
    Kernel("gelu_tanh", _two(_gelu, 1.0, 10.0, "x of size {:g}")),
    Kernel("linear", _two(_linear, 1.0, 1e4, "x of size {:g}")),
    Kernel("kalman", _two(_kalman, 1.0, 10.0, "a prior of deviation {:g}, noise of 0.3")),
    Kernel("linear_cross_entropy", _two(_cross_entropy, 1.0, 10.0, "x of size {:g}"), ours={"reduction": "none"}),
)
