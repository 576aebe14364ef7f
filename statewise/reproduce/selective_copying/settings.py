"""The settings of ``selective-copying``: the layers, the rows, and the training run of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import Count, Distinct, Finite, OneOf, Positive, Seed
from statewise.data.synthetic_languages import SelectiveCopyingConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4 import S4Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.train.config import RunConfig, TrainConfig

D_MODEL = 64
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
class SelectiveCopyingSettings(Config):
    """models:   of "s4", "gss", "h3", "mamba", "mamba2"
    steps:     of every run, at most; no row is read twice
    seeds:     of the parameters and the order of the rows; trained side by side
    length, n_copied, vocab_size: of the language, see ``SelectiveCopying``
    batch_size, lr: rows in a step, and the highest learning rate
    stop_at, stop_after: a run ends once it named at least this fraction of its validation answers in so many looks
               running, one every ``look_every`` steps; stop_at=null: never before its last step
    n_validation, n_test: rows of these splits
    workers:   processes that train side by side
    bars:      whether what the project asks of itself is in the report
    """

    models: Distinct[Annotated[str, OneOf(MIXERS)]] = tuple(MIXERS)
    steps: Count = 6144
    seeds: Distinct[Seed] = (0, 1, 2)
    length: Count = 128
    n_copied: Count = 8
    vocab_size: Count = 16
    batch_size: Count = 32
    lr: Positive = 1e-3
    stop_at: Finite | None = 0.999
    stop_after: Count = 2
    look_every: Count = 256
    n_validation: Count = 256
    n_test: Count = 512
    workers: Count = 2
    bars: bool = True

    def __post_init__(self) -> None:
        run_config(self, self.models[0], self.seeds[0])  # refuses what no run could have


def run_config(config: SelectiveCopyingSettings, model: str, seed: int) -> RunConfig:
    """The training run of a model."""
    layer = BlockConfig(mixer=MIXERS[model])
    return RunConfig(
        model=LanguageModelConfig(vocab_size=config.vocab_size, d_model=D_MODEL, layers=(layer, layer)),
        data=SelectiveCopyingConfig(
            vocab_size=config.vocab_size,
            length=config.length,
            n_copied=config.n_copied,
            n_train=config.steps * config.batch_size,
            n_validation=config.n_validation,
            n_test=config.n_test,
        ),
        train=TrainConfig(
            steps=config.steps,
            batch_size=config.batch_size,
            lr=config.lr,
            dynamics_lr_max=1e-3,
            betas=(0.9, 0.999),
            weight_decay=0.0,
            warmup=0.02,
            stop_at=config.stop_at,
            stop_after=config.stop_after,
            seed=seed,
            evaluate_every=config.look_every,
            evaluate_minutes=None,
            save_minutes=2.0,
            keep_last=1,
            keep_best=False,
            log_every=config.look_every,
        ),
    )


def quick() -> SelectiveCopyingSettings:
    return SelectiveCopyingSettings(
        models=("s4", "mamba"),
        steps=1000,
        seeds=(0,),
        length=48,
        n_copied=4,
        lr=2e-3,
        look_every=100,
        n_validation=64,
        n_test=128,
        workers=1,
        bars=False,
    )
