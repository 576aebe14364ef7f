"""The settings of ``h3-at-work``, and the run that they stand for: one to be trained, or one that is given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from statewise.checkpoints import resolve
from statewise.configuration import Config
from statewise.configuration.types import Count, Depth, EvenCount, Natural, Positive, Seed
from statewise.data.base import absolute
from statewise.data.synthetic_languages import AssociativeRecallConfig, SyntheticLanguageConfig
from statewise.errors import ConfigError
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.h3_at_work.by_hand import KEYS, trace
from statewise.train.config import RunConfig, TrainConfig
from statewise.train.run_folder import read_run

BATCH_SIZE = 32
SCHEDULES = {"cosine": "a cosine", "linear": "a straight line down", "wsd": "a constant rate that falls at the end"}


@dataclass(frozen=True, kw_only=True)
class H3AtWorkSettings(Config):
    """text:     for the layer that is set by hand: keys a-d, values 1-5, and dots; it ends with a key
    model:    a training run of a model with H3 on associative recall to look into; None: one is trained
    d_model, n_layers, d_state, d_shift, d_head:   of the model that is trained
    epochs, lr, n_train:   how
    max_rows: of the test split, to measure on
    example:  the row of the test split that is shown
    seed:     of the run
    """

    text: str = "a3b5.c1.a?"
    model: str | None = None
    d_model: Count = 32
    n_layers: Depth = 1
    d_state: EvenCount = 16
    d_shift: Count | None = 4
    d_head: Count = 1
    epochs: Count = 24
    lr: Positive = 1e-2
    n_train: Count = 5000
    max_rows: Count = 500
    example: Natural = 0
    seed: Seed = 0

    def __post_init__(self) -> None:
        if trace(self.text).text[-1] not in KEYS:
            raise ConfigError(
                f"H3AtWorkSettings.text={self.text!r} asks for nothing; end it with a key, one of {', '.join(KEYS)}"
            )
        if self.model is not None:
            object.__setattr__(self, "model", absolute(self.model))
        n_test = cast(SyntheticLanguageConfig, self.run().data).n_test
        if not self.example < min(self.max_rows, n_test):
            raise ConfigError(
                f"H3AtWorkSettings.example={self.example} is none of the rows that are read: max_rows={self.max_rows}, "
                f"and the test split has {n_test}; use a number from 0 and below both"
            )

    def run(self) -> RunConfig:
        """The run of the model that is looked into.

        Errors: CheckpointError where ``model`` is no run or has no checkpoint; ConfigError for another task, a model
                without H3, and settings that fit no run.
        """
        return run_config(self) if self.model is None else _given(Path(self.model))


def quick() -> H3AtWorkSettings:
    return H3AtWorkSettings(d_model=16, d_state=8, epochs=1, n_train=320, max_rows=64)


def run_config(config: H3AtWorkSettings) -> RunConfig:
    """The published width 32 and MLP for the task; one layer and short systems, which learn it much sooner."""
    if config.n_train < BATCH_SIZE or config.d_model % max(config.d_head, 1):
        raise ConfigError(
            f"H3AtWorkSettings: n_train={config.n_train}, d_model={config.d_model}, d_head={config.d_head}; n_train is "
            f"at least {BATCH_SIZE}, a batch, and d_model a multiple of d_head"
        )
    data = AssociativeRecallConfig(n_train=config.n_train)
    layer = BlockConfig(
        mixer=H3Config(d_state=config.d_state, d_shift=config.d_shift, d_head=config.d_head),
        mlp=MLPConfig(expand=4, activation="gelu_tanh"),
        norm="layer",
    )
    model = LanguageModelConfig(
        vocab_size=data.vocab_size,
        d_model=config.d_model,
        layers=(layer,) * config.n_layers,
        norm="layer",
    )
    training = TrainConfig(
        epochs=config.epochs,
        batch_size=BATCH_SIZE,
        lr=config.lr,
        dynamics_lr_max=1e-3,
        warmup=0.1,
        seed=config.seed,
        evaluate_every=config.n_train // BATCH_SIZE,  # not by the clock: the best of these is looked into
        evaluate_minutes=None,
        save_minutes=0.5,
        log_every=100,
    )
    return RunConfig(model=model, data=data, train=training)


def _given(folder: Path) -> RunConfig:
    """Errors: CheckpointError where there is no run, or no checkpoint in it; ConfigError for another task, or a model
    without H3."""
    run = read_run(folder)
    if not isinstance(run.data, AssociativeRecallConfig):
        raise ConfigError(
            f"{folder} was not trained on associative recall; give a run of the preset associative-recall"
        )
    if not _h3_mixers(run):
        raise ConfigError(f"the model in {folder} has no H3 layer to look into; give one that has")
    resolve(folder, "best")
    return run


def _h3_mixers(run: RunConfig) -> list[H3Config]:
    blocks = cast(LanguageModelConfig, run.model).blocks
    return [block.mixer for block in blocks if isinstance(block.mixer, H3Config)]


def described(run: RunConfig) -> str:
    """The model and its training, beside the published ones."""
    model, train, mixers = cast(LanguageModelConfig, run.model), run.train, _h3_mixers(run)
    budget = [
        f"{number:,.12g} {unit}{'' if number == 1 else 's'}"
        for number, unit in ((train.steps, "step"), (train.epochs, "epoch"), (train.minutes, "minute"))
        if number is not None
    ]
    dropouts = {model.embedding_dropout, *(block.dropout for block in model.blocks)}
    inside = _listed(block.dropout for block in model.blocks)
    dropout = f"dropout {model.embedding_dropout:g} of the embedding and {inside} in the layers"
    return (
        f"{len(mixers)} H3 {'layer' if len(mixers) == 1 else 'layers'} of {len(model.blocks)}, with a register of "
        f"{_listed(mixer.d_state if mixer.d_shift is None else mixer.d_shift for mixer in mixers)} keys and N = "
        f"{_listed(mixer.d_state for mixer in mixers)}; at most {' or '.join(budget)} at a rate of {train.lr:g} with "
        f"{SCHEDULES[train.schedule]}, {dropout if any(dropouts) else 'without dropout'}"
    )


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in sorted(set(numbers)))
