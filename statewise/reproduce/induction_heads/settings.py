"""The settings of ``induction-heads``: which models, trained at which length for how long, and asked at which ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import Count, Distinct, Finite, OneOf, Ratio, Seed
from statewise.data.synthetic_languages import LongInductionHeadConfig, SyntheticLanguageConfig
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.train.config import RunConfig, TrainConfig

NAMES = {"mamba": "Mamba", "h3": "H3", "attention": "attention, learned positions", "rotary": "attention, rotary"}
HISTORY = ("attention", "rotary")  # what they hold of the past grows with it
# Width, mixer and learning rate of each: the published widths, and rates from short trials for Mamba and H3
MODELS: dict[str, tuple[int, MixerConfig, float]] = {
    "mamba": (64, MambaConfig(), 2e-3),
    "h3": (128, H3Config(), 1e-3),
    "attention": (128, AttentionConfig(n_heads=8, positions=None), 2e-4),
    "rotary": (128, AttentionConfig(n_heads=8), 2e-4),
}
GOES_ON = "mamba"  # what it names beyond the length of its rows still gets better when all answers at that are right
LENGTHS = tuple(2**i for i in range(6, 21))


@dataclass(frozen=True, kw_only=True)
class InductionHeadsSettings(Config):
    """models:  of "mamba", "h3", "attention" (a learned vector for each position) and "rotary"
    steps:    at most, one number for each model; no row is read twice
    seeds:    of the parameters and the order of the rows; a run of each for every model
    length:   of the rows for training, in tokens with the answer
    lengths:  of the rows for the tests
    attention_to, attention_rows: attention is asked at lengths up to this, by no more rows than that: the time that it
              takes is quadratic in the length
    batch_size: rows in a step
    warmup, decay: fractions of the steps in which the learning rate rises and falls; between them it is constant
    stop_at, stop_after: a run of any model but Mamba ends once it named at least this fraction of its validation
              answers (at ``length``) in so many looks running, one every ``look_every`` steps; stop_at=null: never
              before its last step
    n_validation: rows of that split
    n_test, test_tokens: each length has ``n_test`` rows, or so many that they hold ``test_tokens`` tokens if those are
              fewer, and one at least
    workers:  processes that work side by side
    bars:     whether what the project asks of itself is in the report
    """

    models: Distinct[Annotated[str, OneOf(MODELS)]] = tuple(MODELS)
    steps: tuple[Count, ...] = (32_768, 16_384, 16_384, 16_384)
    seeds: Distinct[Seed] = (0, 1, 2)
    length: Count = 256
    lengths: Distinct[Count] = LENGTHS
    attention_to: Count = 2**14
    attention_rows: Count = 64
    batch_size: Count = 8
    warmup: Ratio = 0.01
    decay: Ratio = 0.1
    stop_at: Finite | None = 1.0
    stop_after: Count = 4
    look_every: Count = 512
    n_validation: Count = 256
    n_test: Count = 512
    test_tokens: Count = 2**24
    workers: Count = 2
    bars: bool = True

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.models):
            raise ConfigError(f"InductionHeadsSettings.steps={self.steps}; give a number for each model")
        for model in self.models:
            if not self.lengths_of(model):
                raise ConfigError(
                    f"InductionHeadsSettings.lengths={self.lengths} has none up to attention_to={self.attention_to} "
                    f"for {model!r}; give shorter ones, or leave it out of models"
                )
            run_config(self, model, self.seeds[0])  # refuses what no run could have
            for length in self.lengths_of(model):
                asked_config(self, model, length)

    def lengths_of(self, model: str) -> tuple[int, ...]:
        """Where this model is asked, from the shortest."""
        return tuple(sorted(n for n in self.lengths if model not in HISTORY or n <= self.attention_to))

    def n_rows(self, model: str, length: int) -> int:
        """For the test at this length."""
        at_most = min(self.n_test, self.attention_rows) if model in HISTORY else self.n_test
        return max(1, min(at_most, self.test_tokens // length))


def asked_config(config: InductionHeadsSettings, model: str, length: int) -> SyntheticLanguageConfig:
    """The language whose test split the model is asked at this length."""
    n_rows = config.n_rows(model, length)
    return LongInductionHeadConfig(test_length=length, n_test=n_rows)


def run_config(config: InductionHeadsSettings, model: str, seed: int) -> RunConfig:
    """The training run of a model."""
    d_model, mixer, lr = MODELS[model]
    steps = config.steps[config.models.index(model)]
    data = LongInductionHeadConfig(
        length=config.length,
        n_train=steps * config.batch_size,
        n_validation=config.n_validation,
        n_test=config.n_test,
    )
    layer = BlockConfig(mixer=mixer)
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=data.vocab_size,
            d_model=d_model,
            layers=(layer, layer),
            max_positions=max(config.length, *config.lengths_of(model)) if model == "attention" else None,
        ),
        data=data,
        train=TrainConfig(
            steps=steps,
            batch_size=config.batch_size,
            lr=lr,
            lr_min_ratio=0.0,
            schedule="wsd",
            warmup=config.warmup,
            decay=config.decay,
            betas=(0.9, 0.999),
            weight_decay=0.0,
            stop_at=None if model == GOES_ON else config.stop_at,
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


def quick() -> InductionHeadsSettings:
    return InductionHeadsSettings(
        models=("mamba", "h3"),
        steps=(1500, 500),
        seeds=(0,),
        length=32,
        lengths=(32, 64, 128, 256, 1024, 4096),
        batch_size=16,
        look_every=100,
        n_validation=64,
        n_test=64,
        test_tokens=2**16,
        workers=1,
        bars=False,
    )
