"""The settings of ``mqar``: which mixers in which sizes, the rows, and the training run of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import (
    Count,
    Distinct,
    NonEmpty,
    OneOf,
    Positive,
    Seed,
    Share,
    from_to,
)
from statewise.data.synthetic_languages import MultiQueryRecallConfig, SyntheticLanguageConfig
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.projection import WEIGHT_STD, weight_std_at
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.reproduce.rates import rate_name, require_apart
from statewise.reproduce.work import BEFORE
from statewise.train.config import RunConfig, TrainConfig

NAMES = {"h3": "H3", "linear": "linear attention", "mamba2": "Mamba-2", "attention": "attention"}
# Width and mixer, from the smallest state to the largest. Attention and linear attention get learned positions
SIZES: dict[str, tuple[tuple[int, MixerConfig], ...]] = {
    "h3": tuple((d_model, H3Config(d_state=16, d_shift=8)) for d_model in (32, 64, 128)),
    "linear": tuple((d_model, LinearAttentionConfig(n_heads=1)) for d_model in (32, 64, 128)),
    "mamba2": (
        (32, Mamba2Config(d_state=16, d_head=32)),
        (64, Mamba2Config(d_state=16, d_head=32)),
        (64, Mamba2Config(d_state=64, d_head=32)),
    ),
    "attention": tuple((d_model, AttentionConfig(n_heads=1, positions=None)) for d_model in (16, 32, 64)),
}
POSITIONED = ("linear", "attention")


@dataclass(frozen=True, kw_only=True)
class MqarSettings(Config):
    """models:   of "h3", "linear", "mamba2", "attention"; n_sizes: how many states of each, from the smallest
    lengths, pairs, epochs:   of the rows; how many keys and values are in one; how long is trained at most. A length
               may come again with other pairs
    vocab_size, n_train, n_test, random_non_queries:   of the language, see ``MultiQueryRecall``
    rates:     learning rates, tried one after the other by each model in each of its sizes at each length until a run
               has ``stop_at``; where none has, the run that was best on rows of its own counts
    weight_std: of the projections of H3 and of both attentions at the start; None: the published 0.02 at a width of
               768, and at another width so much that their outputs vary as much
    batch_size: rows in a step
    stop_at:   a run ends when its accuracy on 500 rows of their own is this at least
    workers:   processes that train side by side
    seed:      of every run
    """

    models: Distinct[Annotated[str, OneOf(SIZES)]] = (
        "h3",
        "linear",
        "mamba2",
        "attention",
    )
    n_sizes: Annotated[int, from_to(1, 3)] = 3
    lengths: NonEmpty[Count] = (64, 128)
    pairs: tuple[Count, ...] = (4, 8)
    epochs: tuple[Positive, ...] = (24, 12)
    vocab_size: Count = 256
    n_train: Count = 20_000
    n_test: Count = 3_000
    random_non_queries: bool = False
    rates: tuple[Positive, ...] = (3e-3, 1e-2, 1e-3)
    weight_std: Positive | None = field(default=None, metadata={BEFORE: WEIGHT_STD})
    batch_size: Count = 64
    stop_at: Share = 0.99
    workers: Count = 2
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not len(self.lengths) == len(self.pairs) == len(self.epochs):
            raise ConfigError(
                f"MqarSettings: lengths={self.lengths}, pairs={self.pairs}, epochs={self.epochs}; give one of each for "
                "every length"
            )
        require_apart("MqarSettings.rates", self.rates)
        if len(set(zip(self.lengths, self.pairs))) < len(self.lengths):
            raise ConfigError(
                f"MqarSettings: lengths={self.lengths} with pairs={self.pairs} has the same rows twice; give each "
                "length with each number of pairs once"
            )
        if self.batch_size > self.n_train:
            raise ConfigError(
                f"MqarSettings: n_train={self.n_train}, batch_size={self.batch_size}; batch_size is at most n_train"
            )
        for i in range(len(self.lengths)):
            for rate in self.rates:
                run_config(self, self.models[0], 0, i, rate)  # refuses what no run could have

    def language(self, length: int, pairs: int) -> SyntheticLanguageConfig:
        return MultiQueryRecallConfig(
            vocab_size=self.vocab_size,
            length=length,
            n_pairs=pairs,
            random_non_queries=self.random_non_queries,
            n_train=self.n_train,
            n_validation=min(500, self.n_test),
            n_test=self.n_test,
        )


def cell_name(config: MqarSettings, model: str, size: int, i: int) -> str:
    """Of a model in one of its sizes on the i-th rows."""
    return f"{model}-{config.lengths[i]}-{config.pairs[i]}-{size}"


def part_name(cell: str, rate: float) -> str:
    """Of one run of it."""
    return f"{cell}-rate-{rate_name(rate)}"


def run_config(config: MqarSettings, model: str, size: int, i: int, rate: float) -> RunConfig:
    """The training run of a model in one of its sizes on the i-th rows."""
    d_model, mixer = SIZES[model][size]
    if isinstance(mixer, (H3Config, LinearAttentionConfig, AttentionConfig)):
        std = weight_std_at(d_model) if config.weight_std is None else config.weight_std
        mixer = replace(mixer, weight_std=std)
    layer, length = BlockConfig(mixer=mixer, norm="layer"), config.lengths[i]
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=config.vocab_size,
            d_model=d_model,
            layers=(layer, layer),
            norm="layer",
            max_positions=length if model in POSITIONED else None,
        ),
        data=config.language(length, config.pairs[i]),
        train=TrainConfig(
            epochs=config.epochs[i],
            batch_size=config.batch_size,
            lr=rate,
            warmup=0.1,
            stop_at=config.stop_at,
            seed=config.seed,
            evaluate_every=config.n_train // config.batch_size,
            evaluate_minutes=None,
            save_minutes=2.0,
            keep_last=1,
            log_every=100,
        ),
    )


def quick() -> MqarSettings:
    return MqarSettings(
        n_sizes=1,
        lengths=(32,),
        pairs=(2,),
        epochs=(1,),
        rates=(1e-2,),
        vocab_size=16,
        n_train=1280,
        n_test=128,
        workers=1,
    )
