"""The settings of ``h3-language``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import (
    EVEN,
    AtLeastTwo,
    Count,
    Distinct,
    Fraction,
    Limit,
    Name,
    NonNegative,
    OneOf,
    Positive,
    Ratio,
    Seed,
    Share,
    Width,
    above,
    at_most,
    from_to,
)
from statewise.data.sources import CORPORA
from statewise.mixers.projection import WEIGHT_STD, weight_std_at
from statewise.reproduce.h3_language.models import LABELS, USUAL, WITHOUT_MLP, Sizes, build_config
from statewise.reproduce.h3_language.text import text_config
from statewise.reproduce.rates import require_apart
from statewise.reproduce.work import BEFORE
from statewise.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class H3LanguageSettings(Config):
    """source:   of the text, as ``statewise train`` takes it
    vocab_size:  of the BPE that is made from its training split
    models:      which of the nine; the usual ones are those of the paper, Mamba and Mamba-2
    d_model, n_layers: of all with an MLP; Mamba and Mamba-2 have about twice the layers
    n_heads:     of attention        d_state: of all but Mamba, whose 16 are part of its design
    expand:      the width of the Transformer's MLP, as a multiple of d_model; the others' follow from its parameters
    tolerance:   by how much the numbers of parameters may differ
    weight_std:  of the projections of H3, attention and the MLPs at the start. The published 0.02 is for a width of
                 768; None: 0.02 sqrt(768 / d_model), with which a projection's output varies as much as there
    tokens:      that a run is trained on        length, batch_size: of the windows that a step reads
    learning_rates: of which each model gets the one that is best on the validation split, with the first seed
    tuning_share:   of ``tokens`` that this takes; at 1 the best of these runs is the first seed's run
    seeds:       of the runs that are compared
    warmup, weight_decay, dynamics_lr_max: of the training, see ``TrainConfig``; the same for all
    evaluations: looks at the validation split on the way, for the curves, of ``evaluate_tokens`` each
    test_tokens: of the validation and test splits that are read at the end; None: all
    workers:     processes that train, each with its share of the cores
    """

    source: Name = "shakespeare"
    vocab_size: Width = 2048
    models: Distinct[Annotated[str, OneOf(LABELS)]] = USUAL
    d_model: Width = 96
    n_layers: Annotated[int, from_to(3, 10_000)] = 8
    n_heads: Count = 3
    d_state: Annotated[Width, EVEN] = 64
    expand: Annotated[float, above(0), at_most(1000)] = 4.0
    tolerance: Fraction = 0.03
    weight_std: Positive | None = field(default=None, metadata={BEFORE: WEIGHT_STD})
    tokens: Count = 2_000_000
    length: Annotated[int, from_to(2, 2**20)] = 256
    batch_size: Count = 4  # small, for more steps with the same tokens
    learning_rates: tuple[Positive, ...] = (2e-3, 4e-3, 8e-3, 1.6e-2)
    tuning_share: Share = 0.25
    seeds: Distinct[Seed] = (0, 1, 2)
    warmup: Ratio = 0.05
    weight_decay: NonNegative = 0.1
    dynamics_lr_max: Limit | None = None
    evaluations: Count = 8
    evaluate_tokens: AtLeastTwo = 16_384
    test_tokens: AtLeastTwo | None = None
    workers: Count = 2

    def __post_init__(self) -> None:
        require_apart("H3LanguageSettings.learning_rates", self.learning_rates)
        for name in self.models:
            if name not in WITHOUT_MLP:  # whose widths and depths take seconds to find
                build_config(name, self.sizes)
        for lr in self.learning_rates:
            for seed in self.seeds:
                self.training(lr, seed, 1.0)  # refuses what no run could have before the text is made into tokens
        if self.source not in CORPORA:
            object.__setattr__(self, "source", text_config(self.source, Path()).source)

    @property
    def sizes(self) -> Sizes:
        shared = {name: getattr(self, name) for name in Sizes.__dataclass_fields__}
        if self.weight_std is None:
            shared["weight_std"] = weight_std_at(self.d_model)
        return Sizes(**shared)

    def steps(self, share: float = 1.0) -> int:
        return max(2, math.ceil(share * self.tokens / (self.batch_size * self.length)))

    def training(self, lr: float, seed: int, share: float) -> TrainConfig:
        """Of a run on this share of the tokens.

        Errors: ConfigError for what no run could have.
        """
        steps = self.steps(share)
        return TrainConfig(
            steps=steps,
            batch_size=self.batch_size,
            length=self.length,
            seed=seed,
            lr=lr,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            dynamics_lr_max=self.dynamics_lr_max,
            evaluate_every=max(1, steps // self.evaluations),
            evaluate_minutes=None,
            evaluate_items=self.evaluate_tokens,
            evaluate_window=self.length,  # all models alike, whether their state could be carried on or not
            save_minutes=5.0,
            keep_last=1,
            keep_best=False,
            device="cpu",
        )


def quick() -> H3LanguageSettings:
    """All usual ones, tiny: of the text all is read, but hardly anything learned."""
    return H3LanguageSettings(
        vocab_size=512,
        d_model=32,
        n_layers=4,
        n_heads=2,
        d_state=8,
        tolerance=0.1,
        tokens=16_384,
        length=64,
        batch_size=8,
        learning_rates=(2e-3, 8e-3),
        seeds=(0, 1),
        evaluations=2,
        evaluate_tokens=2048,
        test_tokens=4096,
        workers=1,
    )
