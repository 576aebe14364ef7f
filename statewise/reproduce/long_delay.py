"""Random A beside HiPPO's: how far back a gradient reaches, and what accuracy that costs on a long delay.

The model is the same for all, one dense system for each of a few channels and a linear readout; only the matrix that it
begins with differs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import AtLeastTwo, Count, Distinct, EvenWidth, OneOf, Positive, at_least
from statewise.operators.dense import DenseLTI
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.systems import discretize_dense
from statewise.training.report import Reporter

NAMES = {
    "legs": "HiPPO-LegS",
    "legt": "HiPPO-LegT",
    "lin": "S4D-Lin",
    "random": "random, LegS's abscissa",
    "random-as-drawn": "random, as drawn",
    "legs-scaled": "HiPPO-LegS with 1/t",
}
TRAINED = ("legs", "legt", "lin", "random")
MODES = {
    "frozen": "A frozen, the readout trained",
    "learned": "A, B, dt and the readout trained",
    "best": "A frozen, the best readout there is (least squares)",
}
LAGS = (0.5, 1, 2, 4, 8)  # in windows, where the gradient is read off
SPEEDS = (0.5, 1.0, 2.0, 4.0)  # dt of the channels, in units of 1 / delay
BATCH = 8


@dataclass(frozen=True, kw_only=True)
class DelaySettings(Settings):
    """delays:  steps that the model has to remember; period: of the fastest part of its input, in steps
    initial: matrices to begin with, of "legs", "legt", "lin", "random"; d_state: their order N
    radius:  of the disc that the eigenvalues of a random A fill, before it is shifted to LegS's spectral abscissa, -1
    seeds:   how many runs of each; steps: of training, each on 8 fresh sequences of three delays; lr: Adam's
    window:  steps in a unit of time where gradients are measured, over 8 units
    """

    delays: Distinct[AtLeastTwo] = (64, 128, 256, 512, 1024)
    initial: Distinct[Annotated[str, OneOf(TRAINED)]] = TRAINED
    d_state: EvenWidth = 64
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


def gradient_norms(name: str, config: DelaySettings, seed: int = 0) -> Tensor:
    """The norm of d state_t / d input_{t-k}, that is of A^k B (discrete), for k = 0 ... 8 windows, over its largest."""
    length = 8 * config.window + 1
    if name == "legs-scaled":  # d c_t / d u_{t-k} at the time t = 8 windows
        u = torch.zeros(1, length, dtype=torch.float64, requires_grad=True)
        coefficients = hippo.project(u, "legs", config.d_state, at=[-1])[0][0, 0]
        rows = [torch.autograd.grad(c, u, retain_graph=True)[0][0] for c in coefficients]
        found = torch.stack(rows).norm(dim=0).flip(0)
    else:
        A, B = initial_system(name, config, torch.Generator().manual_seed(seed))
        step = torch.tensor(1 / config.window, dtype=torch.float64)
        A, B = discretize_dense(A, B, step, "bilinear")
        identity = torch.eye(config.d_state, dtype=torch.float64)
        found = DenseLTI(A[None], B[None], identity[None]).impulse_response(length)[0].norm(dim=0)
    return found / found.max() if name != "random-as-drawn" else found / found[0]


def trials(config: DelaySettings, work: Work) -> dict[str, Job]:
    jobs = {f"gradient-{name}": Job(measure_gradients, (name, config)) for name in _measured(config)}
    for delay in config.delays:
        for name in config.initial:
            jobs |= {f"delay-{delay}-{name}-{mode}": Job(measure_errors, (name, mode, config, delay)) for mode in MODES}
    return jobs


def _measured(config: DelaySettings) -> list[str]:
    """Whose gradients are."""
    measured = [*config.initial, *(["random-as-drawn"] if "random" in config.initial else [])]
    return [*measured, *(["legs-scaled"] if "legs" in config.initial else [])]


def measure_gradients(name: str, config: DelaySettings, reporter: Reporter) -> dict[str, Any]:
    norms = torch.stack([gradient_norms(name, config, seed) for seed in range(config.seeds)]).median(0).values
    lags = torch.linspace(0, 8 * config.window, 8 * 32 + 1).round().long().unique()
    above = (norms >= 0.01 * norms.max()).nonzero()[-1] / config.window
    at = {str(lag): float(norms[round(lag * config.window)]) for lag in LAGS}
    return {"lag": (lags / config.window).tolist(), "norm": norms[lags].tolist(), "at": at, "reach": float(above)}


def measure_errors(name: str, mode: str, config: DelaySettings, delay: int, reporter: Reporter) -> dict[str, Any]:
    found: list[float] = []
    for seed in range(config.seeds):
        model = DelayModel(name, config, delay, learned=mode == "learned", seed=seed)

        def told(step: int, before: int = seed * config.steps) -> None:
            reporter.progress((before + step) / (config.seeds * config.steps), {})

        if mode != "best":
            train_model(model, config, delay, seed, told)
        found.append(delay_error(model, config, delay, best_readout=mode == "best"))
    return {"error": found}


def report(config: DelaySettings, found: Found) -> Report:
    gradients = {name: found[f"gradient-{name}"] for name in _measured(config)}
    errors = {
        mode: {
            name: {str(delay): found[f"delay-{delay}-{name}-{mode}"]["error"] for delay in config.delays}
            for name in config.initial
        }
        for mode in MODES
    }

    reaches = [
        {
            "name": NAMES[name],
            "norms": [part["at"][str(lag)] for lag in LAGS],
            "reach": "8 or more" if part["reach"] >= 7.99 else f"{part['reach']:.2f}",
        }
        for name, part in gradients.items()
    ]
    tables, panels = [], list[Panel]()
    for mode, title in MODES.items():
        each = {NAMES[name]: [*by_delay.values()] for name, by_delay in errors[mode].items()}
        tables.append(({"mode": title}, [{"name": name, "errors": [*map(_cell, each[name])]} for name in each]))
        lines = [Curve(config.delays, [*map(_middle, found)], name, MARKED) for name, found in each.items()]
        axes: dict[str, Any] = {"log": "y", "ticks": config.delays, "x": "delay, steps"}
        axes |= {
            "y": "" if panels else "error over the signal",
            "levels": [(1.0, {"color": "gray"})],
        }  # to know nothing
        panels.append(Panel(lines, title=title, legend=not panels, **axes))
    norms = [Curve(g["lag"], [max(x or 0, 1e-12) for x in g["norm"]], NAMES[name]) for name, g in gradients.items()]
    words: dict[str, Any] = {"x": "lag, in windows", "y": "norm of d state(t) / d input(t - lag)"}
    words |= {"log": "y", "set": {"ylim": (1e-5, 1e4)}}
    return told(
        "delay",
        {
            **vars(config),
            "n_channels": len(SPEEDS),
            "slowest": SPEEDS[0],
            "fastest": SPEEDS[-1],
            "lags": [f"{lag:g} window{'' if lag == 1 else 's'}" for lag in LAGS],
            "delays_of": [f"{delay:,}" for delay in config.delays],
        },
        reaches,
        tables,
        figures={"gradients": gradients, "error": errors},
        plots=[
            curves("gradients", "How far a gradient reaches", Panel(norms, **words)),
            curves("delay", "What it costs on a delay", *panels, width=11.0, height=4.2, sharey=True),
        ],
    )


def _middle(errors: Sequence[float | None]) -> float:
    known = [error for error in errors if error is not None]
    return statistics.median(known) if known else math.nan


def _cell(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return "diverged"
    spread = f" ({min(known):.2g}, {max(known):.2g})" if max(known) > min(known) else ""
    return f"{statistics.median(known):.2g}{spread}"


CLAIM = Claim(
    summary="random A beside HiPPO A: how far a gradient reaches, and what it costs on a long delay",
    duration="15 minutes",
    source="Gu et al. 2022 (S4), arXiv:2111.00396, sec. 2.2",
    settings=DelaySettings,
    quick="delays=[16,64] d_state=16 period=16 seeds=1 steps=20 window=64",
    trials=trials,
    report=report,
)
