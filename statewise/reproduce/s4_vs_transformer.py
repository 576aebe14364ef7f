"""S4 beside a Transformer: time and memory of a training step, by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.configuration.types import Count, Depth, EvenCount, NonEmpty, Positive
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.s4 import S4Config
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.measure import milliseconds, peak_bytes, time_side_by_side
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Bar, Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.train.config import Device
from statewise.train.environment import choose_device
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Gu et al. 2022 (S4), arXiv:2111.00396, table 3: how many times faster, and the memory as a share, by length.
PUBLISHED_SPEED = {1024: 1.58, 4096: 5.19}
PUBLISHED_MEMORY = {1024: 0.43, 4096: 0.091}
LEAST_SPEED = {1024: 1.6, 4096: 5.2}


@dataclass(frozen=True, kw_only=True)
class S4VsTransformerSettings(Config):
    """lengths, batches: of the sequences, and how many of them are in a step at each length
    d_model, n_layers, n_heads: of both, and of the attention
    d_state: of S4; expand: of the Transformer's MLP
    rounds:  how often both are measured in turn, at each length
    device:  "cpu", "cuda", or "auto"
    """

    lengths: NonEmpty[Count] = (1024, 4096, 16384)
    batches: tuple[Count, ...] = (8, 8, 2)
    d_model: Count = 256
    n_layers: Depth = 4
    n_heads: Count = 4
    d_state: EvenCount = 64
    expand: Positive = 4.0
    rounds: Count = 3
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.batches):
            raise ConfigError(
                f"S4VsTransformerSettings: lengths={self.lengths}, batches={self.batches}; give a batch for each length"
            )
        choose_device(self.device)  # refuses what is not there before the folder is made


def quick() -> S4VsTransformerSettings:
    return S4VsTransformerSettings(
        lengths=(64, 256), batches=(2, 1), d_model=32, n_layers=2, n_heads=2, d_state=16, rounds=2
    )


class Stack(nn.Module):
    """Blocks one after the other, without embedding and head: (batch, length, d_model) -> the same."""

    def __init__(self, block: BlockConfig, d_model: int, n_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block.build(d_model) for _ in range(n_layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x, _ = block(x)
        return x


def models(config: S4VsTransformerSettings, device: torch.device) -> dict[str, Stack]:
    """Both in float32, from one seed. The Transformer has no positions, which would cost it time."""
    torch.manual_seed(0)
    attention = AttentionConfig(n_heads=config.n_heads, positions=None)
    transformer = BlockConfig(mixer=attention, mlp=MLPConfig(expand=config.expand), norm="layer")
    s4 = BlockConfig(mixer=S4Config(d_state=config.d_state), norm="layer")
    blocks = {"Transformer": transformer, "S4": s4}
    return {name: Stack(block, config.d_model, config.n_layers).to(device) for name, block in blocks.items()}


def training_step(model: Stack, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor) -> None:
    """Forward, backward, and the update of the parameters."""
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def run(config: S4VsTransformerSettings, work: Work) -> Report:
    device = choose_device(config.device)
    work.begin(len(config.lengths))
    found: dict[int, dict[str, Any]] = {}
    for length, batch in zip(config.lengths, config.batches):
        measure = partial(_measure, config, work, length, batch, device)
        found[length] = work.part(f"length-{length}", measure, device=device)
    return _report(config, found)


def _measure(
    config: S4VsTransformerSettings, work: Work, length: int, batch: int, device: torch.device
) -> dict[str, Any]:
    stacks = models(config, device)
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(batch, length, config.d_model, generator=generator).to(device) for _ in range(2))
    total, memory = config.rounds + 2, {}
    actions: dict[str, Callable[[], object]] = {}
    for i, (name, model) in enumerate(stacks.items()):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        actions[name] = partial(training_step, model, optimizer, x, target)
        actions[name]()  # makes the optimiser's moments, and what kernels keep
        optimizer.zero_grad()
        memory[name] = peak_bytes(actions[name], device)
        work.progress(i + 1, total)
    seconds = time_side_by_side(
        actions, config.rounds, device=device, progress=lambda done, _: work.progress(done + 2, total)
    )
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in stacks.items()}
    return {"batch": batch, "seconds": seconds, "peak_bytes": memory, "parameters": parameters}


def _report(config: S4VsTransformerSettings, found: Mapping[int, Mapping[str, Any]]) -> Report:
    time_rows, memory_rows, figures, bars = [], [], {}, []
    for length, part in found.items():
        ms = {name: milliseconds(seconds) for name, seconds in part["seconds"].items()}
        mb = {name: n_bytes / 1e6 for name, n_bytes in part["peak_bytes"].items()}
        speed, share = ms["Transformer"] / ms["S4"], mb["S4"] / mb["Transformer"]
        label = (f"{length:,}", str(part["batch"]))
        published = f"{PUBLISHED_SPEED[length]:g}x" if length in PUBLISHED_SPEED else "-"
        time_rows.append((*label, published, f"{ms['Transformer']:,.0f}", f"{ms['S4']:,.0f}", f"{speed:.2f}x"))
        published = f"{PUBLISHED_MEMORY[length]:g}" if length in PUBLISHED_MEMORY else "-"
        memory_rows.append((*label, published, f"{mb['Transformer']:,.0f}", f"{mb['S4']:,.0f}", f"{share:.3f}"))
        figures[str(length)] = {"ms": ms, "mb": mb, "speed_ratio": speed, "memory_share": share, **part}
        if length in LEAST_SPEED and (config.d_model, config.n_layers) == (256, 4):
            bars.append(Bar(what=f"S4 faster at length {length:,}", ours=speed, bar=LEAST_SPEED[length], unit="x"))
    parameters = next(iter(found.values()))["parameters"]
    columns = ("length", "batch", "published", "Transformer, ours", "S4", "ratio")
    return Report(
        title="S4 beside a Transformer: one training step",
        setting=(
            f"Width {config.d_model}, {config.n_layers} layers, float32, {config.device}: forward, backward and AdamW. "
            f"The Transformer has {config.n_heads} heads, PyTorch's fused causal attention, no positions, and MLPs of "
            f"{config.expand:g} times the width: {parameters['Transformer']:,} parameters. S4 has N = "
            f"{config.d_state}, GELU and a gated output, and no MLP, as published: {parameters['S4']:,} parameters. "
            f"Both in one process, in turns, medians of {config.rounds}."
        ),
        tables=[
            Table("Milliseconds a training step", columns, time_rows),
            Table(
                "Megabytes at the peak; the ratio is S4's share",
                columns,
                memory_rows,
                ("Peak of what the step allocates, gradients among it, above inputs, parameters and Adam's moments.",),
            ),
        ],
        bars=bars,
        differences=(
            "The published ratios (arXiv:2111.00396, table 3) are against a Transformer whose attention is not fused "
            "and holds the whole matrix of scores; that one is slower and needs memory that grows with the square of "
            "the length. They were measured on a GPU.",
            "The fused attention needs memory in proportion to the length, so that the published memory shares cannot "
            "be expected against it.",
            "The parameter counts differ, as in the published comparison: an S4 layer has no MLP.",
        ),
        figures=figures,
        plots=[drawn("s4-vs-transformer", "A training step", partial(_draw, figures=figures), width=8.5, height=4.0)],
    )


def _draw(drawing: Figure, figures: Mapping[str, Any]) -> None:
    panels = drawing.subplots(1, 2)
    lengths = [int(length) for length in figures]
    for name in ("Transformer", "S4"):
        steps = [figures[str(n)]["batch"] * n for n in lengths]
        ms = [1e3 * figures[str(n)]["ms"][name] / count for n, count in zip(lengths, steps)]
        kb = [1e3 * figures[str(n)]["mb"][name] / count for n, count in zip(lengths, steps)]
        panels[0].loglog(lengths, ms, marker="o", label=name)
        panels[1].loglog(lengths, kb, marker="o", label=name)
    for axes, title in zip(panels, ("microseconds a time step", "kilobytes a time step")):
        doubling_axis(axes, lengths, "length")
        axes.set_title(title, fontsize=10)
        axes.legend()


REPRODUCTION = Reproduction(
    summary="a training step of S4 beside a Transformer at lengths 1,024, 4,096 and 16,384",
    duration="10 minutes",
    full=S4VsTransformerSettings,
    quick=quick,
    run=run,
)
