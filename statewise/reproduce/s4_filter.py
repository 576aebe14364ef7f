"""S4's filter by Cauchy sums beside squaring the dense A, and S4D's: when which is the less work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statewise.configuration.types import Count, Distinct, EvenCount
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.time_invariant import TimeInvariantMixer
from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.measure import Action, compare, in_units
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.config import Device
from statewise.training.environment import choose_device
from statewise.training.report import Reporter

SUMS, SQUARES, DIAGONAL = "Cauchy sums", "squares of A", "S4D"


@dataclass(frozen=True, kw_only=True)
class S4FilterSettings(Settings):
    """orders: N of the systems; lengths: of the filter
    channels: systems, each with an A of its own
    rounds:   how often all are measured in turn
    device:   "cpu", "cuda", or "auto"
    """

    orders: Distinct[EvenCount] = (16, 64, 256)
    lengths: Distinct[Count] = (256, 1024, 4096, 16384, 65536)
    channels: Count = 64
    rounds: Count = 5
    device: Device = "cpu"


def trials(config: S4FilterSettings, work: Work) -> dict[str, Job]:
    return {
        f"order-{order}-length-{length}": Job(measure_filter, (config, order, length))
        for order in config.orders
        for length in config.lengths
    }


def filters(order: int, length: int, channels: int, device: torch.device) -> dict[str, tuple[TimeInvariantMixer, Any]]:
    """By name a layer, and what makes the filter from its operator."""
    torch.manual_seed(0)
    s4 = S4Config(d_state=order, n_systems=None).build(channels).to(device)
    s4d = S4DConfig(d_state=order, n_systems=None).build(channels).to(device)
    return {
        SUMS: (s4, lambda operator: operator.response_by_cauchy_sums(length)),
        SQUARES: (s4, lambda operator: operator.response_by_squaring(length)),
        DIAGONAL: (s4d, lambda operator: operator.impulse_response(length)),
    }


def forward_and_backward(mixer: TimeInvariantMixer, response: Any, upstream: Tensor) -> None:
    """The filter from the parameters, and its gradient for them.

    Shapes:  upstream: (channels, length)
    """
    for parameter in mixer.parameters():
        parameter.grad = None
    response(mixer.build_operators()[0])[..., : upstream.shape[-1]].reshape(upstream.shape).backward(upstream)


def chosen(operator: object, length: int) -> str:
    """Which of the two S4 takes by itself."""
    assert isinstance(operator, DiagonalPlusLowRank)
    return SQUARES if operator.squares(length) else SUMS


def measure_filter(config: S4FilterSettings, order: int, length: int, reporter: Reporter) -> dict[str, Any]:
    device = choose_device(config.device)
    parts = filters(order, length, config.channels, device)
    upstream = torch.randn(config.channels, length, generator=torch.Generator().manual_seed(1)).to(device)
    actions: dict[str, Action] = {
        name: partial(forward_and_backward, mixer, response, upstream) for name, (mixer, response) in parts.items()
    }
    for action in actions.values():
        action()  # what kernels keep
    with torch.no_grad():
        operators = {name: mixer.build_operators()[0] for name, (mixer, _) in parts.items()}
        ours, other = (parts[name][1](operators[name]) for name in (SUMS, SQUARES))
        difference = float((ours - other).abs().max() / other.abs().max())
    found = compare(actions, config.rounds, device, reporter)
    return {**found, "chosen": chosen(operators[SUMS], length), "difference": difference}


def report(config: S4FilterSettings, found: Found) -> Report:
    rows, panels, right = [], [], 0
    for order in config.orders:
        parts = {length: found[f"order-{order}-length-{length}"] for length in config.lengths}
        units = {length: in_units(part) for length, part in parts.items()}
        for length, part in parts.items():
            ms = units[length]["ms"]
            faster = min((SUMS, SQUARES), key=ms.__getitem__)
            right += faster == part["chosen"]
            rows.append(
                {"order": order, "length": length, "faster": faster, "ratio": ms[SQUARES] / ms[SUMS], **part}
                | {"ms": ms, "mb": units[length]["mb"]}
            )
        lines = [
            Curve(config.lengths, [unit["ms"][name] for unit in units.values()], name, MARKED)
            for name in (SUMS, SQUARES, DIAGONAL)
        ]
        panels.append(Panel(lines, title=f"N = {order}", ticks=config.lengths, log="xy", x="length"))
    values = {**vars(config), "right": right, "n": len(rows)}
    picture = curves("s4-filter", "Milliseconds of a filter, forward and backward", *panels, width=10.5, height=3.6)
    return told("s4-filter", values, rows, figures={"parts": found}, plots=[picture])


CLAIM = Claim(
    summary="S4's filter by Cauchy sums beside squaring the dense A, and S4D's, for N = 16, 64, 256 and every length",
    duration="10 minutes",
    source="Gu et al. 2022 (S4), arXiv:2111.00396, sec. 3.2: the filter in O(N + L) by Cauchy sums, against O(N^2 L)",
    settings=S4FilterSettings,
    quick="orders=[4,16] lengths=[64,256] channels=4 rounds=2",
    trials=trials,
    report=report,
)
