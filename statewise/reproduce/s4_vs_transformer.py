"""S4 beside a Transformer: time and memory of a training step, by length."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Depth, Distinct, EvenWidth, NonEmpty, Positive, Width
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.s4 import S4Config
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.measure import compare, in_units
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Bar, Curve, Panel, Report, curves
from statewise.reproduce.settings import BEFORE, Settings
from statewise.reproduce.work import Job, Work
from statewise.training.config import Device
from statewise.training.environment import choose_device
from statewise.training.report import Reporter

# Gu et al. 2022 (S4), arXiv:2111.00396, table 3: how many times faster, and the memory as a share, by length.
PUBLISHED_SPEED = {1024: 1.58, 4096: 5.19}
PUBLISHED_MEMORY = {1024: 0.43, 4096: 0.091}
LEAST_SPEED = {1024: 1.6, 4096: 5.2}


@dataclass(frozen=True, kw_only=True)
class S4VsTransformerSettings(Settings):
    """lengths, batches: of the sequences, and how many of them are in a step at each length
    alone:    whether each length is measured with one sequence in a step as well
    d_model, n_layers, n_heads: of both, and of the attention
    d_state: of S4; expand: of the Transformer's MLP
    rounds:  how often both are measured in turn, at each length
    device:  "cpu", "cuda", or "auto"
    """

    lengths: Distinct[Count] = (1024, 4096, 16384)
    batches: NonEmpty[Count] = (8, 8, 2)
    alone: bool = field(default=True, metadata={BEFORE: False})
    d_model: Width = 256
    n_layers: Depth = 4
    n_heads: Count = 4
    d_state: EvenWidth = 64
    expand: Positive = 4.0
    rounds: Count = 3
    device: Device = "cpu"

    def check(self) -> None:
        self.require_as_many("lengths", "batches")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Length and batch of each part."""
        found = {f"length-{n}": (n, batch) for n, batch in zip(self.lengths, self.batches)}
        alone = {f"length-{n}-alone": (n, 1) for n, batch in found.values() if self.alone and batch > 1}
        return {**found, **alone}


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


def trials(config: S4VsTransformerSettings, work: Work) -> dict[str, Job]:
    return {part: Job(measure_length, (config, *size)) for part, size in config.sizes().items()}


def measure_length(config: S4VsTransformerSettings, length: int, batch: int, reporter: Reporter) -> dict[str, Any]:
    device = choose_device(config.device)
    stacks, generator = models(config, device), torch.Generator().manual_seed(1)
    x, target = (torch.randn(batch, length, config.d_model, generator=generator).to(device) for _ in range(2))
    actions = {}
    for name, model in stacks.items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        actions[name] = partial(training_step, model, optimizer, x, target)
        actions[name]()  # makes the optimiser's moments, and what kernels keep
        optimizer.zero_grad()
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in stacks.items()}
    return {"batch": batch, **compare(actions, config.rounds, device, reporter), "parameters": parameters}


def report(config: S4VsTransformerSettings, found: Found) -> Report:
    figures: dict[str, dict[str, Any]] = {}
    for part in config.sizes():
        ms, mb = (units := in_units(found[part])).values()
        ratios = {"speed_ratio": ms["Transformer"] / ms["S4"], "memory_share": mb["S4"] / mb["Transformer"]}
        figures[part.removeprefix("length-")] = {**units, **ratios, **found[part]}
    by_length = {n: figures[str(n)] for n in config.lengths}
    rows = []
    for part, (n, _) in config.sizes().items():
        published = (
            {"faster": PUBLISHED_SPEED.get(n), "share": PUBLISHED_MEMORY.get(n)} if part == f"length-{n}" else {}
        )
        rows.append({"faster": None, "share": None, **figures[part.removeprefix("length-")], "n": n, **published})
    panels = []
    for unit, title in (("ms", "microseconds a time step"), ("mb", "kilobytes a time step")):
        lines = [
            Curve(config.lengths, [1e3 * f[unit][name] / (f["batch"] * n) for n, f in by_length.items()], name, MARKED)
            for name in ("Transformer", "S4")
        ]
        panels.append(Panel(lines, title=title, ticks=config.lengths, log="y", x="length"))
    is_full = (config.d_model, config.n_layers) == (256, 4)
    return told(
        "s4-vs-transformer",
        {**vars(config), "parameters": by_length[config.lengths[0]]["parameters"]},
        rows,
        rows,
        bars=[
            Bar(what=f"S4 faster at length {n:,}", ours=by_length[n]["speed_ratio"], bar=bar, unit="x")
            for n, bar in LEAST_SPEED.items()
            if n in by_length and is_full
        ],
        figures=figures,
        plots=[curves("s4-vs-transformer", "A training step", *panels, width=8.5, height=4.0)],
    )


CLAIM = Claim(
    summary="a training step of S4 beside a Transformer at lengths 1,024, 4,096 and 16,384",
    duration="10 minutes",
    source="Gu et al. 2022 (S4), arXiv:2111.00396, table 3",
    settings=S4VsTransformerSettings,
    quick="lengths=[64,256] batches=[2,1] d_model=32 n_layers=2 n_heads=2 d_state=16 rounds=2",
    trials=trials,
    report=report,
)
