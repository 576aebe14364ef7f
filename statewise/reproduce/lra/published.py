"""What is published of the Long Range Arena: accuracies, and the settings of S4 and S4D, task by task.

S4: github.com/state-spaces/s4, ``configs/experiment/lra/s4-*.yaml`` (version 4), with the defaults of its model, layer,
    optimiser and scheduler; the settings of Gu et al. 2023, arXiv:2206.12037.
S4D: the same code, ``configs/experiment/lra/old/v3-s4-*.yaml``, with a diagonal A: the settings of Gu et al. 2022,
    arXiv:2206.11893. For Path-X a comment there says that the paper itself had a rate of 5e-4 and an epoch of warm-up.
H3: arXiv:2212.14052 gives accuracies; neither its code nor safari's has settings for these tasks.

Every model reads in both directions, as the published S4, S4D and Transformer do, so that none sees more than another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from statewise.data.long_range import LongRangeDataConfig
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "path-x")
TITLES = dict(zip(TASKS, ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X")))
CHANCE = (10.0, 50.0, 50.0, 10.0, 50.0, 50.0)  # one of so many classes

# Accuracies in % in the order of TASKS, None where training failed; and the averages as published, of accuracies with
# more digits: the log of S4's code has none.
_TABLE: dict[str, tuple[tuple[float | None, ...], str | None]] = {
    "Transformer (Tay et al. 2021)": ((36.37, 64.27, 57.46, 42.44, 71.40, None), "53.66"),
    "S4 (arXiv:2206.12037)": ((59.60, 86.82, 90.90, 88.65, 94.20, 96.35), "86.09"),
    "S4, the log of its code": ((59.5, 86.5, 91.0, 88.5, 94.0, 96.0), None),
    "S4D-LegS (arXiv:2206.11893)": ((60.5, 86.2, 89.5, 88.2, 93.1, 91.9), "84.89"),
    "S4D-Inv": ((60.2, 87.3, 91.1, 87.8, 93.8, 92.8), "85.50"),
    "S4D-Lin": ((60.52, 86.97, 90.96, 87.93, 93.96, None), "78.39"),
    "S4D, as H3's paper quotes it": ((58.3, 87.3, 90.7, 87.5, 93.6, 92.3), "85.0"),
    "H3 (arXiv:2212.14052)": ((57.5, 88.2, 91.0, 87.3, 93.0, 91.8), "84.8"),
    "S5 (arXiv:2208.04933)": ((62.2, 89.3, 91.4, 88.0, 95.3, 98.6), "87.5"),
}
ACCURACY = {name: row for name, (row, _) in _TABLE.items()}
AVERAGE = {name: average for name, (_, average) in _TABLE.items() if average is not None}
# How many times a Transformer's speed of training, over the Arena's tasks: H3's paper, of FlashConv
SPEED = {"FlashAttention": 2.4, "block-sparse FlashAttention": 2.8, "S4": 2.9, "S4 with FlashConv": 5.8}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How one task is trained.

    n_systems: how many A and B there are; None: as many as channels    d_state: N
    norm, placement: of the blocks, and with "pre" also of the norm after the last
    dropout:   of whole features, in the layer and in the residual branch
    lr:        of everything but A, B and dt; these have ``dynamics_lr``, with ``dt_apart`` A and B alone
    epochs:    that ``steps`` were meant to be; warmup: steps at the beginning
    """

    d_model: int
    d_state: int
    placement: str
    batch_size: int
    lr: float
    steps: int
    warmup: int
    epochs: int
    n_layers: int = 6
    n_systems: int | None = None
    norm: str = "batch"
    dropout: float = 0.0
    dt_range: tuple[float, float] = (1e-3, 1e-1)
    dynamics_lr: float = 1e-3
    dt_apart: bool = False
    weight_decay: float = 0.05

    @property
    def looks_every(self) -> int:
        """Steps of an epoch: the published runs look at the validation split after each."""
        return self.steps // self.epochs


_FIELDS = ("d_model", "d_state", "placement", "batch_size", "lr", "steps", "warmup", "epochs")
_SHARED, _APART = {"n_systems": 1}, {"n_systems": 1, "dt_apart": True}
S4: dict[str, Setting] = {
    task: Setting(**dict(zip(_FIELDS, row)), **more)  # type: ignore[arg-type]
    for task, row, more in (
        ("listops", (256, 4, "post", 32, 0.01, 120_000, 12_000, 40), _APART),
        ("text", (256, 4, "pre", 16, 0.01, 50_000, 5_000, 32), _APART),
        ("retrieval", (256, 4, "pre", 64, 0.01, 50_000, 5_000, 20), _APART),
        ("image", (512, 64, "post", 50, 0.01, 180_000, 18_000, 200), {**_SHARED, "dropout": 0.1}),
        ("pathfinder", (256, 64, "pre", 64, 0.004, 500_000, 50_000, 200), {}),
        ("path-x", (256, 64, "pre", 16, 0.001, 500_000, 50_000, 50), {"dt_range": (1e-4, 1e-1)}),
    )
}

_LARGE = {task: replace(setting, d_state=64, n_systems=None) for task, setting in S4.items()}
S4D: dict[str, Setting] = {
    "listops": replace(_LARGE["listops"], d_model=128, n_layers=8, batch_size=50, steps=80_000, warmup=1_000),
    "text": replace(_LARGE["text"], warmup=1_000),
    "retrieval": replace(_LARGE["retrieval"], warmup=2_500),
    "image": replace(_LARGE["image"], norm="layer", n_systems=2, dt_apart=True, warmup=900),
    "pathfinder": replace(_LARGE["pathfinder"], weight_decay=0.03, warmup=2_500),
    "path-x": replace(_LARGE["path-x"], dynamics_lr=5e-4),
}

# For H3 none are published: those of S4D, its layer in the place of S4D's
SETTINGS = {"s4": S4, "s4d": S4D, "h3": S4D}
N_CLASSES = {"listops": 10, "image": 10}  # all others have two
VOCABULARY = {"listops": 18, "text": 135, "retrieval": 98}  # all others read one number a step


def arena_task(task: str) -> str:
    """The task of the Arena that the data stand for.

    >>> arena_task("path-x-gen"), arena_task("text-folder"), arena_task("listops")
    ('path-x', 'text', 'listops')
    """
    return task.removesuffix("-gen").removesuffix("-folder")


def setting_of(model: str, task: str) -> Setting:
    """The published one; of H3, Mamba-2 and the Transformer, of which none is known for these blocks, that of S4D."""
    return SETTINGS.get(model, S4D)[arena_task(task)]


def published_run(model: str, task: str, folder: str | None = None) -> RunConfig:
    """The published run of "s4" or "s4d", and of "h3" with the settings of S4D, on the data of ``task``."""
    setting = setting_of(model, task)
    data = LongRangeDataConfig(task=task, folder=folder)
    return RunConfig(model=model_config(model, task, setting), data=data, train=published_training(setting))


def published_training(setting: Setting) -> TrainConfig:
    """AdamW with PyTorch's betas, no clipping, and a cosine that ends at 0; one look an epoch, the best is kept."""
    return TrainConfig(
        budget=BudgetConfig(steps=setting.steps),
        optimizer=OptimizerConfig(
            lr=setting.lr,
            dynamics_lr_max=setting.dynamics_lr,
            dt_lr_ratio=1.0 if setting.dt_apart else None,
            betas=(0.9, 0.999),
            weight_decay=setting.weight_decay,
            clip_norm=None,
        ),
        schedule=ScheduleConfig(warmup=setting.warmup / setting.steps, min_ratio=0.0),
        reporting=ReportingConfig(evaluate_every=setting.looks_every, evaluate_minutes=None, log_every=100),
        batch_size=setting.batch_size,
    )


def model_config(
    model: str, task: str, setting: Setting, *, n_heads: int = 4, bidirectional: bool = True
) -> SequenceModelConfig:
    """Blocks of one mixer, the mean over a row's own steps, and a linear head; for retrieval a head of pairs."""
    dropout: dict[str, Any] = {"dropout": setting.dropout, "tied_dropout": setting.dropout > 0}
    norm = "auto" if setting.placement == "post" else setting.norm
    if model == "transformer":
        attention = AttentionConfig(n_heads=n_heads, bias=True, bidirectional=bidirectional)
        block, norm = BlockConfig(mixer=attention, mlp=MLPConfig(), norm="layer"), "layer"
    else:
        mixer = mixer_config(model, setting, dropout, bidirectional)
        block = BlockConfig(mixer=mixer, norm=setting.norm, placement=setting.placement, **dropout)
    name = arena_task(task)
    fields: dict[str, Any] = {
        "d_model": setting.d_model,
        "layers": (block,) * setting.n_layers,
        "norm": norm,
        "n_classes": N_CLASSES.get(name, 2),
        **({"vocab_size": VOCABULARY[name]} if name in VOCABULARY else {"d_input": 1}),
    }
    return PairClassifierConfig(**fields) if name == "retrieval" else SequenceClassifierConfig(**fields)


def mixer_config(model: str, setting: Setting, dropout: dict[str, Any], bidirectional: bool) -> MixerConfig:
    shared: dict[str, Any] = {"d_state": setting.d_state, "dt_range": setting.dt_range, "bidirectional": bidirectional}
    if model == "h3":
        return H3Config(**shared)
    if model == "mamba2":
        d_head = math.gcd(Mamba2Config.d_head, Mamba2Config.expand * setting.d_model)
        return Mamba2Config(d_head=d_head, **shared)
    shared |= {"n_systems": setting.n_systems, **dropout}
    return S4Config(**shared) if model == "s4" else S4DConfig(**shared)
