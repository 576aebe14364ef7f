"""The dense LSSL beside S4: time and memory of a training step of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statewise.configuration.types import Count, Distinct, EvenCount
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.s4 import S4Config
from statewise.mixers.time_invariant import TimeInvariantMixer
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.measure import compare, in_units
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Bar, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.config import Device
from statewise.training.environment import choose_device
from statewise.training.report import Reporter

# Gu et al. 2022 (S4), arXiv:2111.00396, table 2: milliseconds and megabytes, LSSL and S4, by width.
PUBLISHED = {
    "ms": {128: (9.32, 4.77), 256: (20.6, 3.07), 512: (140.7, 4.75)},
    "mb": {128: (222.0, 5.3), 256: (1685.0, 12.6), 512: (13140.0, 33.5)},
}
LEAST_SPEED, LEAST_MEMORY, AT_WIDTH, AT_LENGTH = 30.0, 400.0, 512, 1024
DENSE_COPIES = 24  # of A that the step holds at a time, about, to refuse a machine that is too small


@dataclass(frozen=True, kw_only=True)
class LsslVsS4Settings(Settings):
    """widths: channels, with as many states each; length: of the one sequence
    rounds: how often both are measured in turn, for each width; s4_repeats: steps of S4 in a round, for one of LSSL
    device: "cpu", "cuda", or "auto"
    """

    widths: Distinct[EvenCount] = (128, 256, 512)
    length: Count = AT_LENGTH
    rounds: Count = 3
    s4_repeats: Count = 5
    device: Device = "cpu"


def layers(width: int, device: torch.device) -> dict[str, TimeInvariantMixer]:
    """The two, each with ``width`` systems of order ``width``, all of their own; from one seed."""
    torch.manual_seed(0)
    lssl = LSSLConfig(d_state=width, gated_output=False).build(width)
    s4 = S4Config(d_state=width, n_systems=None, gated_output=False).build(width)
    return {"LSSL": lssl.to(device), "S4": s4.to(device)}


def training_step(mixer: TimeInvariantMixer, u: Tensor, upstream: Tensor) -> None:
    """Forward and backward of the layer's systems: the gradients of A (for S4 Lambda and P), B, C and dt.

    Without what both have alike and the published table does not name: the skip D, the activation, the linear output.
    Shapes:  u, upstream: (batch, length, width)
    """
    for parameter in mixer.parameters():
        parameter.grad = None
    y, _ = mixer.build_operators()[0](u)
    y[..., 0].backward(upstream)


def trials(config: LsslVsS4Settings, work: Work) -> dict[str, Job]:
    return {f"width-{width}": Job(measure_width, (config, width)) for width in config.widths}


def measure_width(config: LsslVsS4Settings, width: int, reporter: Reporter) -> dict[str, Any]:
    device = choose_device(config.device)
    if device.type == "cpu":
        what, remedy = f"the dense LSSL of width {width}", "leave that width out (--set widths=[128])"
        require_memory(DENSE_COPIES * 4 * width**3, what, remedy)
    mixers = layers(width, device)
    generator = torch.Generator().manual_seed(1)
    u, upstream = (torch.randn(1, config.length, width, generator=generator).to(device) for _ in range(2))
    actions = {name: partial(training_step, mixer, u, upstream) for name, mixer in mixers.items()}
    actions["S4"]()  # the first call of a kernel may prepare what later calls find
    for parameter in mixers["S4"].parameters():
        parameter.grad = None
    # LSSL's memory is its only warm-up: at width 512 a step takes long
    found = compare(
        actions,
        config.rounds,
        device,
        reporter,
        repeats={"S4": config.s4_repeats},
        memory_of={name: actions[name] for name in ("S4", "LSSL")},
    )
    trained = {name: [*mixer.dynamics.parameters(), mixer.readout.C] for name, mixer in mixers.items()}
    n_bytes = {name: sum(p.numel() * p.element_size() for p in parameters) for name, parameters in trained.items()}
    return {**found, "parameter_bytes": n_bytes}


def report(config: LsslVsS4Settings, found: Found) -> Report:
    figures: dict[int, dict[str, Any]] = {}
    for width in config.widths:
        ms, mb = (units := in_units(found[f"width-{width}"])).values()
        ratios = {"speed_ratio": ms["LSSL"] / ms["S4"], "memory_ratio": mb["LSSL"] / mb["S4"]}
        figures[width] = {**units, **ratios, **found[f"width-{width}"]}
    known = {
        unit: {w: lssl / s4 for w, (lssl, s4) in of_each.items() if w in figures} for unit, of_each in PUBLISHED.items()
    }
    rows = [
        {
            **part,
            "width": width,
            "theirs": {unit: PUBLISHED[unit].get(width) for unit in PUBLISHED},
            "known": {unit: known[unit].get(width) for unit in PUBLISHED},
        }
        for width, part in figures.items()
    ]
    panels, bars = [], []
    for unit, ratio, word, bar in (
        ("ms", "speed_ratio", "faster", LEAST_SPEED),
        ("mb", "memory_ratio", "smaller", LEAST_MEMORY),
    ):
        if AT_WIDTH in figures and config.length == AT_LENGTH:
            what = f"S4 {word} at width {AT_WIDTH}"
            bars.append(Bar(what=what, ours=figures[AT_WIDTH][ratio], bar=bar, unit="x"))
        here = Curve(config.widths, [f[ratio] for f in figures.values()], "here", MARKED)
        theirs = Curve([*known[unit]], [*known[unit].values()], "published", {"marker": "s", "ls": "--"})
        title = f"S4 is so many times {word} than LSSL"
        panels.append(Panel([here, theirs], title=title, ticks=config.widths, log="y", x="width = N"))
    return told(
        "lssl-vs-s4",
        {**vars(config), "n_s4": config.rounds * config.s4_repeats},
        rows,
        rows,
        bars=bars,
        figures={str(width): part for width, part in figures.items()},
        plots=[curves("lssl-vs-s4", "LSSL over S4", *panels, width=8.5, height=4.0)],
    )


CLAIM = Claim(
    summary="a training step of the dense LSSL beside S4, time and memory at widths 128, 256, 512",
    duration="5 minutes, and 12 GB of memory",
    source="Gu et al. 2022 (S4), arXiv:2111.00396, table 2",
    settings=LsslVsS4Settings,
    quick="widths=[16,32] length=256 rounds=2 s4_repeats=2",
    trials=trials,
    report=report,
)
