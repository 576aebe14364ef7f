"""The model of the long delay: dense systems, a linear readout, and how they are trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration import Config
from statewise.configuration.types import (
    AtLeastTwo,
    Count,
    EvenCount,
    NonEmpty,
    OneOf,
    Positive,
    at_least,
)
from statewise.operators.dense import DenseLTI
from statewise.systems import discretize_dense

TRAINED = ("legs", "legt", "lin", "random")
SPEEDS = (0.5, 1.0, 2.0, 4.0)  # dt of the channels, in units of 1 / delay
BATCH = 8


@dataclass(frozen=True, kw_only=True)
class DelaySettings(Config):
    """delays:  steps that the model has to remember; period: of the fastest part of its input, in steps
    initial: matrices to begin with, of "legs", "legt", "lin", "random"; d_state: their order N
    radius:  of the disc that the eigenvalues of a random A fill, before it is shifted to LegS's spectral abscissa, -1
    seeds:   how many runs of each; steps: of training, each on 8 fresh sequences of three delays; lr: Adam's
    window:  steps in a unit of time where gradients are measured, over 8 units
    """

    delays: NonEmpty[AtLeastTwo] = (64, 128, 256, 512, 1024)
    initial: NonEmpty[Annotated[str, OneOf(TRAINED)]] = TRAINED
    d_state: EvenCount = 64
    radius: Positive = 64.0
    period: AtLeastTwo = 32
    seeds: Count = 3
    steps: Count = 200
    lr: Positive = 1e-2
    window: Annotated[int, at_least(8)] = 512


def initial_system(name: str, config: DelaySettings, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A (n, n) and B (n,), float64, real: S4D-Lin's as blocks of 2 x 2."""
    n = config.d_state
    if name == "random":
        return hippo.random_transition(n, generator, abscissa=-1.0, radius=config.radius)
    if name == "random-as-drawn":
        A = torch.randn(n, n, dtype=torch.float64, generator=generator) / math.sqrt(n)
        return A, torch.randn(n, dtype=torch.float64, generator=generator)
    if name != "lin":
        return hippo.transition(name, n)
    Lambda, _ = hippo.diagonal("lin", n)
    A, B = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    A[0::2, 0::2] = A[1::2, 1::2] = torch.diag(Lambda.real)
    A[1::2, 0::2], A[0::2, 1::2] = torch.diag(Lambda.imag), torch.diag(-Lambda.imag)
    B[0::2] = 1
    return A, B


class DelayModel(nn.Module):
    """y = sum_h C_h x_h + D u with x_h' = A_h x_h + B_h u for each channel h; ``learned``: A, B and dt too."""

    def __init__(self, name: str, config: DelaySettings, delay: int, *, learned: bool, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        systems = [initial_system(name, config, generator) for _ in SPEEDS]
        self.A = nn.Parameter(torch.stack([A for A, _ in systems]).float(), requires_grad=learned)
        self.B = nn.Parameter(torch.stack([B for _, B in systems]).float(), requires_grad=learned)
        self.log_dt = nn.Parameter((torch.tensor(SPEEDS) / delay).log(), requires_grad=learned)
        n = config.d_state
        self.C = nn.Parameter(torch.randn(len(SPEEDS), n, generator=generator) / n)
        self.D = nn.Parameter(torch.zeros(1))

    def forward(self, u: Tensor) -> Tensor:
        """(batch, length) -> the same"""
        A, B = discretize_dense(self.A, self.B, self.log_dt.exp(), "bilinear")
        y, _ = DenseLTI(A, B, self.C)(u.unsqueeze(-1).expand(-1, -1, len(SPEEDS)))
        return y.sum(-1) + self.D * u

    def states(self, u: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, channels n), float64"""
        A, B = discretize_dense(self.A.double(), self.B.double(), self.log_dt.double().exp(), "bilinear")
        identity = torch.eye(A.shape[-1], dtype=torch.float64).expand(len(SPEEDS), -1, -1)
        y, _ = DenseLTI(A, B, identity)(u.double().unsqueeze(-1).expand(-1, -1, len(SPEEDS)))
        return y.flatten(2)


def noise(rows: int, length: int, period: int, generator: torch.Generator) -> Tensor:
    """White noise up to one cycle in ``period`` steps, of variance 1: (rows, length)."""
    n = length // 2 + 1
    spectrum = torch.randn(rows, n, dtype=torch.complex128, generator=generator)
    passed = torch.arange(n) * period <= length
    passed[0] = False
    u = torch.fft.irfft(spectrum * passed, n=length)
    return (u / u.square().mean(1, keepdim=True).sqrt()).float()


def train_model(
    model: DelayModel, config: DelaySettings, delay: int, seed: int, progress: Callable[[int], object] | None = None
) -> None:
    """Adam with a cosine to zero on the mean squared error of the steps that have something to remember."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=config.lr, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(config.steps):
        optimizer.param_groups[0]["lr"] = config.lr * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        u = noise(BATCH, 3 * delay, config.period, generator)
        loss = (model(u)[:, delay:] - u[:, :-delay]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if progress is not None:
            progress(step + 1)


@torch.no_grad()
def delay_error(model: DelayModel, config: DelaySettings, delay: int, *, best_readout: bool) -> float:
    """The root mean square of y_t - u_{t-delay} on 64 fresh sequences; their variance is 1, so 1 is to know nothing.

    best_readout: with the C and D of least squares on 16 other sequences instead of the model's own, in float64.
    """
    u = noise(64, 3 * delay, config.period, torch.Generator().manual_seed(99))
    if not best_readout:
        return float((model(u)[:, delay:] - u[:, :-delay]).square().mean().sqrt())
    seen = noise(16, 3 * delay, config.period, torch.Generator().manual_seed(98))

    def features(signal: Tensor) -> Tensor:
        return torch.cat([model.states(signal), signal.double().unsqueeze(-1)], -1)[:, delay:].flatten(0, 1)

    X = features(seen)
    scale = X.square().mean(0).sqrt().clamp(min=1e-300)
    X = X / scale
    products = X.mT @ X / len(X)
    ridge = 1e-9 * torch.eye(len(products), dtype=torch.float64)  # float32's rounding of the states, about
    readout = torch.linalg.solve(products + ridge, X.mT @ seen[:, :-delay].double().flatten() / len(X))
    y = torch.cat([(features(part) / scale) @ readout for part in u.split(8)])
    return float((y - u[:, :-delay].double().flatten()).square().mean().sqrt())
