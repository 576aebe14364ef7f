"""Selective copying: layers whose coefficients follow the input beside layers whose coefficients do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from statewise.configuration.types import Count, Distinct, OneOf, Positive, Width
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4 import S4Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.outcomes import label, row_of
from statewise.reproduce.page import told
from statewise.reproduce.report import Bar, Curve, Panel, Report, curves
from statewise.reproduce.synthetic import SyntheticSettings
from statewise.reproduce.training import trained
from statewise.reproduce.work import Job, Work
from statewise.training.config import RunConfig, ScheduleConfig

# Gu and Dao 2023 (Mamba), arXiv:2312.00752, table 1: accuracy in %
PUBLISHED = {"s4": 18.3, "h3": 57.0, "mamba": 99.8}
LEAST, GAP = 99.0, 20.0  # % of the selective layers, and the points that count as well below
NAMES = {"s4": "S4, no gate", "gss": "S4D, gated (GSS)", "h3": "H3", "mamba": "Mamba", "mamba2": "Mamba-2"}
MIXERS: dict[str, MixerConfig] = {
    "s4": S4Config(gated_output=False),
    "gss": GSSConfig(),
    "h3": H3Config(),
    "mamba": MambaConfig(),
    "mamba2": Mamba2Config(d_state=64, d_head=32),
}
SELECTIVE = ("mamba", "mamba2")


@dataclass(frozen=True, kw_only=True)
class SelectiveCopyingSettings(SyntheticSettings):
    """models:   of "s4", "gss", "h3", "mamba", "mamba2"        steps: of every run, at most
    length, n_copied, vocab_size: of the language, see ``SelectiveCopying``        lr: the highest learning rate
    """

    models: Distinct[Annotated[str, OneOf(MIXERS)]] = tuple(MIXERS)
    steps: Count = 6144
    length: Count = 128
    n_copied: Count = 8
    vocab_size: Width = 16
    lr: Positive = 1e-3

    def check(self) -> None:
        run_config(self, self.models[0], self.seeds[0])  # refuses what no run could have


def run_config(config: SelectiveCopyingSettings, model: str, seed: int) -> RunConfig:
    """The training run of a model."""
    sizes = {"vocab_size": config.vocab_size, "length": config.length, "n_copied": config.n_copied}
    layers = (BlockConfig(mixer=MIXERS[model]),) * 2
    return RunConfig(
        model=LanguageModelConfig(vocab_size=config.vocab_size, d_model=64, layers=layers),
        data=config.language("selective-copying", config.steps, **sizes),
        train=config.training(seed, config.steps, ScheduleConfig(warmup=0.02), lr=config.lr, dynamics_lr_max=1e-3),
    )


def trials(config: SelectiveCopyingSettings, work: Work) -> dict[str, Job]:
    runs = {f"{model}-{seed}": run_config(config, model, seed) for model in config.models for seed in config.seeds}
    return {part: trained(work, part, {"seed": run}) for part, run in runs.items()}


def report(config: SelectiveCopyingSettings, found: Found) -> Report:
    rows, lines = {}, []
    for i, model in enumerate(config.models):
        row = row_of(NAMES[model], [found[f"{model}-{seed}"] for seed in config.seeds], PUBLISHED.get(model))
        rows[model] = row | {"selective": "yes" if model in SELECTIVE else "no"}
        style = {"color": f"C{i}", "linewidth": 1.2, "linestyle": "-" if model in SELECTIVE else "--"}
        for run in row["whole"] or [{"course": [], "steps": 0}]:
            steps = [min((k + 1) * config.look_every, run["steps"]) for k in range(len(run["course"]))]
            lines.append(Curve(steps, [100 * accuracy for accuracy in run["course"]], label(row), style))
    x, y = "step (dashed: time-invariant)", "validation accuracy, %"
    return told(
        "selective-copying",
        {
            **vars(config),
            "chance": 1 / (config.vocab_size - 2),
            "minutes": sum(part["cpu_seconds"] for part in found.values()) / 60,
        },
        rows.values(),
        bars=_bars(rows) if config.bars else [],
        figures={"runs": found},
        plots=[curves("selective-copying", "Validation accuracy", Panel(lines, x=x, y=y, set={"ylim": (0, 102)}))],
    )


def _bars(rows: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    best = {model: 100 * row["best"] for model, row in rows.items() if row["best"] is not None}
    bars = [
        Bar(what=f"{NAMES[model]}, the best seed", ours=best.get(model), bar=LEAST, unit=" %")
        for model in rows
        if model in SELECTIVE
    ]
    ours, theirs = ([x for model, x in best.items() if (model in SELECTIVE) == is_ours] for is_ours in (True, False))
    if ours and theirs and len(best) == len(rows):
        what = "how far the best time-invariant layer is below the worst selective one"
        bars.append(Bar(what=what, ours=min(ours) - max(theirs), bar=GAP, unit=" points"))
    return bars


CLAIM = Claim(
    summary="selective copying: Mamba and Mamba-2 beside S4, gated S4D and H3",
    duration="an hour on 2 cores",
    source="Gu and Dao 2023 (Mamba), arXiv:2312.00752, table 1",
    settings=SelectiveCopyingSettings,
    quick='models=["s4","mamba"] steps=1000 seeds=[0] length=48 n_copied=4 lr=2e-3 look_every=100 n_validation=64 '
    "n_test=128 workers=1 bars=false",
    trials=trials,
    report=report,
)
