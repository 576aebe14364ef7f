"""S4D beside attention, a GRU and a causal CNN on one task: how well each does, in what time and with what memory."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import torch

from statewise.configuration import assign
from statewise.configuration.types import AtLeastTwo, Distinct, OneOf, Seed
from statewise.errors import DivergedError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.gated_recurrence import GRUConfig
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.temporal_convolution import tcn_layers
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.measure import n_parameters, peak_bytes
from statewise.reproduce.outcomes import LOST
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import CPU_FILE, Counting, on_the_test, read_looks, train_one
from statewise.reproduce.work import Job, Work
from statewise.training.config import RunConfig
from statewise.training.presets import PRESETS, fit_model
from statewise.training.report import Reporter
from statewise.training.tasks import open_task, run_types

# What is measured on the test split, and how a table writes it
MEASURED = {
    "digits": ("accuracy", ".1%"),
    "acsf1": ("accuracy", ".1%"),
    "spoken-digits": ("accuracy", ".1%"),
    "fashion-mnist": ("accuracy", ".1%"),
    "co2": ("mae", ".3f"),
}
ARMS = {"s4d": "S4D", "attention": "attention", "gru": "GRU", "tcn": "causal CNN", "lssl": "LSSL"}
USUAL = tuple(ARMS)[:4]
RATES = {"s4d": None, "attention": 1e-3, "gru": 2e-3, "tcn": 2e-3, "lssl": None}  # None: the preset's own
N_HEADS, EXPAND = 4, 2
LEVELS, TAPS, CHANNELS = 8, 7, 25  # Bai et al. 2018, arXiv:1803.01271, table 3: sequential MNIST
_ONE_STEP = "one-step.json"


@dataclass(frozen=True, kw_only=True)
class BaselinesSettings(Settings):
    """preset:  of ``statewise train``: its data, schedule and, for S4D, its model
    arms:     of "s4d", "attention", "gru", "tcn" and "lssl", which is not among the usual ones
    settings: fields of every run to set, as "train.budget.steps=100"
    folder:   where the data lie, for data that have a folder
    seeds:    one run each for every arm
    max_rows: of the test split are read; None: all
    """

    preset: Annotated[str, OneOf(MEASURED)] = "acsf1"
    arms: Distinct[Annotated[str, OneOf(ARMS)]] = USUAL
    settings: tuple[str, ...] = ()
    folder: str | None = None
    seeds: Distinct[Seed] = (0,)
    max_rows: AtLeastTwo | None = None

    def check(self) -> None:
        has_folder = hasattr(PRESETS[self.preset]().data, "folder")
        self.require(self.folder is None or has_folder, f"the data of {self.preset} have no folder; leave it out")


class Trained(Protocol):
    """Settings of a claim that trains several arms of a preset."""

    @property
    def preset(self) -> str: ...
    @property
    def settings(self) -> tuple[str, ...]: ...
    @property
    def folder(self) -> str | None: ...


def run_config(config: Trained, arm: str, seed: int) -> RunConfig:
    """The training run of an arm.

    Errors: ConfigError for a field that the run does not have.
    """
    preset = PRESETS[config.preset]()
    if config.folder is not None:
        preset = replace(preset, data=replace(preset.data, folder=config.folder))  # type: ignore[call-arg]
    rate = RATES[arm]
    own = [] if rate is None else [f"train.lr={rate}", "train.optimizer.dynamics_lr_max=null"]
    given = [*own, *config.settings, f"train.seed={seed}"]
    changed = assign(replace(preset, model=with_arm(preset.model, arm)), given, types=run_types())
    return fit_model(changed, {text.split("=")[0].strip() for text in given}) if config.settings else changed


def with_arm(model: ModelConfig, arm: str) -> ModelConfig:
    """The model of a preset with other layers, as many as it has; the CNN has its paper's, which reach further the more
    there are.
    """
    if arm == "s4d":
        return model
    layers = cast(Any, model).layers
    first = layers[0] if isinstance(layers[0], BlockConfig) else BlockConfig(mixer=layers[0], norm="layer")
    if arm == "tcn":
        levels = tcn_layers(LEVELS, n_taps=TAPS, dropout=first.dropout)
        blocks = tuple(replace(first, mixer=level, dropout=0.0) for level in levels)
        return replace(model, d_model=CHANNELS, layers=blocks)  # type: ignore[call-arg]
    if arm == "gru":
        block = replace(first, mixer=GRUConfig())
    elif arm == "lssl":
        s4d = cast(S4DConfig, first.mixer)
        block = replace(first, mixer=LSSLConfig(d_state=s4d.d_state, dt_range=s4d.dt_range))
    else:
        block = replace(first, mixer=AttentionConfig(n_heads=N_HEADS), mlp=MLPConfig(expand=EXPAND, activation="gelu"))
    return replace(model, layers=(block,) * len(layers))  # type: ignore[call-arg]


def trials(config: BaselinesSettings, work: Work) -> dict[str, Job]:
    return {
        f"{arm}-{seed}": Job(train_arm, (run_config(config, arm, seed), str(work.folder / f"run-{arm}-{seed}"), config))
        for arm in config.arms
        for seed in config.seeds
    }


def train_arm(run: RunConfig, folder: str, config: BaselinesSettings, reporter: Reporter) -> dict[str, Any]:
    """A trial: trained, or continued, and evaluated where validation was best. One that diverged is a result.

    peak_bytes: that a training step takes above what is there before it, forward and backward
    """
    path = Path(folder)
    step_memory = _step_memory(run, path)
    counting = Counting(path / CPU_FILE, reporter)
    try:
        try:
            result = train_one(run, path, counting)
        finally:
            counting.write()  # the test is not counted
        task, looks = open_task(run), read_looks(path)
        record = on_the_test(task, run, path, config.max_rows)
    except DivergedError as error:
        return {"diverged": error.what, "peak_bytes": step_memory, "parameters": n_parameters(run.model)}
    return {
        "diverged": None,
        "evaluation": record,
        "steps": result.step,
        "cpu_seconds": json.loads((path / CPU_FILE).read_text()),
        "peak_bytes": step_memory,
        "parameters": n_parameters(run.model),
        "metric": task.metric,
        "course": [line[task.metric] for line in looks],
        "course_steps": [line["step"] for line in looks],
    }


def _step_memory(run: RunConfig, folder: Path) -> int:
    """Measured on the first batch, and kept in a file, so that a run that goes on does not measure it again."""
    path = folder.parent / f"{folder.name}-{_ONE_STEP}"
    if path.exists():
        return int(json.loads(path.read_text()))
    task = open_task(run)
    torch.manual_seed(run.train.seed)
    model: Any = task.run.model.build()

    def step() -> None:
        loss, _ = task.loss(model, task.batches[0], None)
        loss.backward()

    step()  # memory for the gradients themselves is there afterwards, and what is set up once too
    found = peak_bytes(step)
    path.write_text(json.dumps(found))
    return found


def report(config: BaselinesSettings, found: Found) -> Report:
    name, written = MEASURED[config.preset]
    rows, panels = [], []
    for arm in config.arms:
        parts = [found[f"{arm}-{seed}"] for seed in config.seeds]
        whole = [part for part in parts if part["diverged"] is None]
        ours = [part["evaluation"][name] for part in whole]
        rows.append(
            {
                "name": ARMS[arm],
                "ours": format(statistics.fmean(ours), written) if len(ours) == len(parts) else LOST,
                "spread": format(statistics.stdev(ours), written) if len(ours) == len(parts) > 1 else None,
                "weights": parts[0]["parameters"],
                "steps": round(statistics.fmean(part["steps"] for part in whole)) if whole else None,
                "rate": run_config(config, arm, config.seeds[0]).train.optimizer.lr,
                "cpu": statistics.fmean(part["cpu_seconds"] for part in whole) if whole else None,
                "ms": statistics.fmean(1e3 * part["cpu_seconds"] / part["steps"] for part in whole) if whole else None,
                "memory": parts[0]["peak_bytes"] / 1e6,
            }
        )
        panels += [
            Curve(part["course_steps"], part["course"], ARMS[arm] if i == 0 else None, {"color": f"C{len(rows) - 1}"})
            for i, part in enumerate(whole)
        ]
    metric = next((part["metric"] for part in found.values() if part["diverged"] is None), name)
    values = {**vars(config), "measured": name, "N_HEADS": N_HEADS}
    values |= {"LEVELS": LEVELS, "TAPS": TAPS, "CHANNELS": CHANNELS, "EXPAND": EXPAND, "changed": bool(config.settings)}
    panel = Panel(panels, title=config.preset, x="step", y=f"{metric} on the validation split")
    title = f"{config.preset}: {metric} during training"
    return told("baselines", values, rows, figures={"runs": found}, plots=[curves("baselines", title, panel)])


CLAIM = Claim(
    summary="S4D beside attention, a GRU and a causal CNN on one task: accuracy, time, memory",
    duration="an hour of one core for acsf1",
    settings=BaselinesSettings,
    quick='preset=digits settings=["train.budget.steps=4","train.budget.epochs=null",'
    '"train.reporting.evaluate_items=16"] max_rows=16',
    trials=trials,
    report=report,
)
