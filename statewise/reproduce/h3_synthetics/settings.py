"""The settings of ``h3-synthetics``, and the training run of each model on each language."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from statewise.configuration import Config
from statewise.configuration.types import Count, Distinct, Limit, OneOf, Seed, Share
from statewise.data.synthetic_languages import LANGUAGES
from statewise.data.whole_batches import count_batches
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.work import BEFORE
from statewise.train.config import RunConfig, TrainConfig

D_MODEL, BATCH_SIZE, LR = 32, 32, 5e-4
ATTENTION = AttentionConfig(n_heads=1, positions=None, bias=True)
MIXERS: dict[str, MixerConfig] = {
    "s4d": S4DConfig(d_state=64, initialization="inv", n_systems=1, B="normal", learn_B=False),
    "gss": GSSConfig(),
    "h3": H3Config(d_state=64, d_head=1),
    "hybrid": H3Config(d_state=64, d_head=1),
    "attention": ATTENTION,
    "mamba": MambaConfig(),
    "mamba2": Mamba2Config(d_state=64, d_head=32),
}
TASKS = ("induction-head", "associative-recall")
# Of the settings, those that may be other than published
PUBLISHED = ("clip_norm", "weight_decay_of", "dropout_of", "drop_last", "warmup_prefix")
DROPOUT, DROPPED = 0.1, ("weights", "branches")
# The published schedules: a cosine of 5e-4 down to 5e-5 after a warm-up from 1e-6, and straight lines up and down
SCHEDULES: dict[str, dict[str, Any]] = {
    "induction-head": {"schedule": "cosine", "lr_start_ratio": 1e-6 / LR, "lr_min_ratio": 0.1},
    "associative-recall": {"schedule": "linear", "lr_min_ratio": 0.0},  # which falls from the warm-up's end in any case
}


@dataclass(frozen=True, kw_only=True)
class H3SyntheticsSettings(Config):
    """models:  of "s4d", "gss", "h3", "hybrid", "attention", "mamba", "mamba2"
    tasks:    of "induction-head", "associative-recall"
    epochs:   one number for each task
    seeds:    of the parameters, the dropout and the order of the rows; trained side by side, as one stack
    n_train, n_validation, n_test: rows of each language; no row is in two of them
    stop_at, stop_after: a run ends once its accuracy on the validation rows was at least this after so many epochs
              running; stop_at=null: never before its last epoch
    clip_norm, weight_decay_of: as ``TrainConfig`` has them; the published code clips no gradient, and every parameter
              but the systems' decays
    dropout_of: what the Transformer's dropout of 0.1 drops: the "weights" of its attention, as published, or the
              "branches" before they join the residual stream
    drop_last, warmup_prefix: as ``TrainConfig`` has them; as published, the last 8 of 5,000 rows are a batch of their
              own, and the cosine begins under the warm-up
    workers:  processes that train side by side
    bars:     whether what the project asks of itself is in the report
    """

    models: Distinct[Annotated[str, OneOf(MIXERS)]] = tuple(MIXERS)
    tasks: Distinct[Annotated[str, OneOf(TASKS)]] = TASKS
    epochs: tuple[Count, ...] = (400, 200)
    seeds: Distinct[Seed] = (0, 1, 2)
    n_train: Count = 5000
    n_validation: Count = 500
    n_test: Count = 500
    stop_at: Share | None = 0.999
    stop_after: Count = 10
    clip_norm: Limit | None = None
    weight_decay_of: Literal["maps", "all"] = "all"
    dropout_of: Annotated[str, OneOf(DROPPED)] = field(default="weights", metadata={BEFORE: "branches"})
    drop_last: bool = field(default=False, metadata={BEFORE: True})
    warmup_prefix: bool = field(default=False, metadata={BEFORE: True})
    workers: Count = 2
    bars: bool = True

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.tasks):
            raise ConfigError(f"H3SyntheticsSettings.epochs={self.epochs}; give a number for each task")
        if self.drop_last and self.n_train < BATCH_SIZE:
            raise ConfigError(
                f"H3SyntheticsSettings.n_train={self.n_train} fills no batch of {BATCH_SIZE}; use more, or "
                "drop_last=false"
            )
        for seed in self.seeds:
            run_config(self, self.tasks[0], self.models[0], seed)  # refuses what no run could have


def is_everything(config: H3SyntheticsSettings) -> bool:
    """Whether all models learn both languages for as long and from as many rows as published."""
    full = H3SyntheticsSettings()
    return (
        set(config.models) == set(full.models)
        and dict(zip(config.tasks, config.epochs)) == dict(zip(full.tasks, full.epochs))
        and config.n_train >= full.n_train
        and all(getattr(config, name) == getattr(full, name) for name in PUBLISHED)
    )


def run_config(config: H3SyntheticsSettings, task: str, model: str, seed: int) -> RunConfig:
    """The training run of a model on a task."""
    steps_per_epoch = count_batches(config.n_train, BATCH_SIZE, config.drop_last)
    data = LANGUAGES[task](n_train=config.n_train, n_validation=config.n_validation, n_test=config.n_test)
    is_attention = model == "attention"
    mlp = MLPConfig(expand=4, activation="gelu_tanh")
    layer = BlockConfig(mixer=MIXERS[model], mlp=mlp, norm="layer")
    if is_attention and config.dropout_of == "weights":
        layer = replace(layer, mixer=replace(ATTENTION, dropout=DROPOUT))
    elif is_attention:
        layer = replace(layer, dropout=DROPOUT)
    other = replace(layer, mixer=ATTENTION)  # of the hybrid
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=data.vocab_size,
            d_model=D_MODEL,
            layers=hybrid_layers(layer, other, n_layers=2, at=(1,) if model == "hybrid" else ()),
            norm="layer",
            embedding_dropout=0.1,
            max_positions=data.length if is_attention else None,
        ),
        data=data,
        train=TrainConfig(
            epochs=config.epochs[config.tasks.index(task)],
            batch_size=BATCH_SIZE,
            lr=LR,
            dynamics_lr_max=1e-3,
            betas=(0.9, 0.999),
            weight_decay=0.1,
            weight_decay_of=config.weight_decay_of,
            clip_norm=config.clip_norm,
            warmup=0.1,
            **SCHEDULES[task],
            drop_last=config.drop_last,
            warmup_prefix=config.warmup_prefix or SCHEDULES[task]["schedule"] != "cosine",
            stop_at=config.stop_at,
            stop_after=config.stop_after,
            seed=seed,
            evaluate_every=steps_per_epoch,
            evaluate_minutes=None,
            save_minutes=2.0,
            keep_last=1,
            log_every=steps_per_epoch,
        ),
    )
