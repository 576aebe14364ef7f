"""The dense LSSL beside S4: time and memory of a training step of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise.configuration import Config
from statewise.configuration.types import Count, EvenCount, NonEmpty
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.s4 import S4Config
from statewise.mixers.time_invariant import TimeInvariantMixer
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.measure import milliseconds, peak_bytes, time_side_by_side
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Bar, Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.train.config import Device
from statewise.train.environment import choose_device
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Gu et al. 2022 (S4), arXiv:2111.00396, table 2: milliseconds and megabytes, LSSL and S4, by width.
PUBLISHED_MS = {128: (9.32, 4.77), 256: (20.6, 3.07), 512: (140.7, 4.75)}
PUBLISHED_MB = {128: (222.0, 5.3), 256: (1685.0, 12.6), 512: (13140.0, 33.5)}
LEAST_SPEED, LEAST_MEMORY, AT_WIDTH = 30.0, 400.0, 512
DENSE_COPIES = 24  # of A that the step holds at a time, about, to refuse a machine that is too small


@dataclass(frozen=True, kw_only=True)
class LsslVsS4Settings(Config):
    """widths: channels, with as many states each; length: of the one sequence
    rounds: how often both are measured in turn, for each width; s4_repeats: steps of S4 in a round, for one of LSSL
    device: "cpu", "cuda", or "auto"
    """

    widths: NonEmpty[EvenCount] = (128, 256, 512)
    length: Count = 1024
    rounds: Count = 3
    s4_repeats: Count = 5
    device: Device = "cpu"

    def __post_init__(self) -> None:
        choose_device(self.device)  # refuses what is not there before the folder is made


def quick() -> LsslVsS4Settings:
    return LsslVsS4Settings(widths=(16, 32), length=256, rounds=2, s4_repeats=2)


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


def run(config: LsslVsS4Settings, work: Work) -> Report:
    device = choose_device(config.device)
    work.begin(len(config.widths))
    found: dict[int, dict[str, Any]] = {}
    for width in config.widths:
        found[width] = work.part(f"width-{width}", partial(_measure, config, work, width, device), device=device)
    return _report(config, found)


def _measure(config: LsslVsS4Settings, work: Work, width: int, device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        require_memory(
            DENSE_COPIES * 4 * width**3,
            f"the dense LSSL of width {width}",
            "leave that width out (--set widths=[128])",
        )
    mixers = layers(width, device)
    generator = torch.Generator().manual_seed(1)
    u, upstream = (torch.randn(1, config.length, width, generator=generator).to(device) for _ in range(2))
    actions: dict[str, Callable[[], object]] = {
        name: partial(training_step, mixer, u, upstream) for name, mixer in mixers.items()
    }
    total, memory = config.rounds + 2, {}
    actions["S4"]()  # the first call of a kernel may prepare what later calls find
    for i, name in enumerate(("S4", "LSSL")):
        for parameter in mixers[name].parameters():
            parameter.grad = None
        memory[name] = peak_bytes(actions[name], device)  # LSSL's only warm-up: at width 512 a step takes long
        work.progress(i + 1, total)
    seconds = time_side_by_side(
        actions,
        config.rounds,
        repeats={"S4": config.s4_repeats},
        device=device,
        progress=lambda done, _: work.progress(done + 2, total),
    )
    trained = {name: _trained_bytes(mixer) for name, mixer in mixers.items()}
    return {"seconds": seconds, "peak_bytes": memory, "parameter_bytes": trained}


def _trained_bytes(mixer: TimeInvariantMixer) -> int:
    """Of A, B, C and dt."""
    parameters = [*mixer.dynamics.parameters(), mixer.readout.C]
    return sum(p.numel() * p.element_size() for p in parameters)


def _report(config: LsslVsS4Settings, found: Mapping[int, Mapping[str, Any]]) -> Report:
    time_rows, memory_rows, figures = [], [], {}
    for width, part in found.items():
        ms = {name: milliseconds(part["seconds"][name]) for name in ("LSSL", "S4")}
        mb = {name: part["peak_bytes"][name] / 1e6 for name in ("LSSL", "S4")}
        speed, memory = ms["LSSL"] / ms["S4"], mb["LSSL"] / mb["S4"]
        ours = (f"{ms['LSSL']:,.1f}", f"{ms['S4']:,.2f}", f"{speed:,.1f}x")
        time_rows.append((str(width), *_pair(PUBLISHED_MS.get(width)), *ours))
        ours = (f"{mb['LSSL']:,.1f}", f"{mb['S4']:,.1f}", f"{memory:,.3g}x")
        memory_rows.append((str(width), *_pair(PUBLISHED_MB.get(width)), *ours))
        figures[str(width)] = {"ms": ms, "mb": mb, "speed_ratio": speed, "memory_ratio": memory, **part}
    columns = ("width = N", "LSSL, published", "S4", "ratio", "LSSL, ours", "S4", "ratio")
    tables = [
        Table("Milliseconds a training step", columns, time_rows),
        Table(
            "Megabytes at the peak",
            columns,
            memory_rows,
            ("Peak of what the step allocates, gradients among it, above inputs and parameters.",),
        ),
    ]
    bars = []
    if str(AT_WIDTH) in figures and config.length == 1024:
        at = figures[str(AT_WIDTH)]
        bars = [
            Bar(what=f"S4 faster at width {AT_WIDTH}", ours=at["speed_ratio"], bar=LEAST_SPEED, unit="x"),
            Bar(what=f"S4 smaller at width {AT_WIDTH}", ours=at["memory_ratio"], bar=LEAST_MEMORY, unit="x"),
        ]
    return Report(
        title="LSSL beside S4: one layer, one training step",
        setting=(
            f"As many states as channels, one sequence of {config.length:,} steps, float32, {config.device}: forward, "
            "backward and the gradients of A, B, C and dt, of every channel its own; no gradient for the input. Both "
            f"in one process, in turns: {config.rounds} steps of LSSL, {config.rounds * config.s4_repeats} of S4, "
            "medians."
        ),
        tables=tables,
        bars=bars,
        differences=(
            "The published table (arXiv:2111.00396, table 2) was measured on a GPU and names neither batch nor length "
            "nor what is learned; the ratios are to be compared, not the milliseconds.",
            "The LSSL here is no straw man: it gets its impulse response by squaring A some log2(length) times, not by "
            "one product for each step; the table does not say how the published one got its.",
            "Only the systems are measured: the skip D, the activation and the linear output, alike in both, would "
            "make the ratios smaller.",
        ),
        figures=figures,
        plots=[drawn("lssl-vs-s4", "LSSL over S4", partial(_draw, figures=figures), width=8.5, height=4.0)],
    )


def _pair(published: tuple[float, float] | None) -> tuple[str, str, str]:
    if published is None:
        return "-", "-", "-"
    lssl, s4 = published
    return f"{lssl:,g}", f"{s4:g}", f"{lssl / s4:,.1f}x"


def _draw(drawing: Figure, figures: Mapping[str, Any]) -> None:
    panels = drawing.subplots(1, 2)
    widths = [int(width) for width in figures]
    for axes, key, published, title in (
        (panels[0], "speed_ratio", PUBLISHED_MS, "times faster"),
        (panels[1], "memory_ratio", PUBLISHED_MB, "times smaller"),
    ):
        axes.loglog(widths, [figures[str(width)][key] for width in widths], marker="o", label="here")
        known = [width for width in widths if width in published]
        axes.loglog(known, [published[w][0] / published[w][1] for w in known], marker="s", ls="--", label="published")
        doubling_axis(axes, widths, "width = N")
        axes.set_title(f"S4 is so many {title} than LSSL", fontsize=10)
        axes.legend()


REPRODUCTION = Reproduction(
    summary="a training step of the dense LSSL beside S4, time and memory at widths 128, 256, 512",
    duration="5 minutes, and 12 GB of memory",
    full=LsslVsS4Settings,
    quick=quick,
    run=run,
)
