"""Long tasks, for which a state is carried or sequences are read in pieces."""

from __future__ import annotations

from statewise.data.joined_rows import JoinConfig
from statewise.data.labelled import LabelledDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.text import TextDataConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.environment import multiplies_bfloat16

PIECE = 4096  # steps


def genome() -> RunConfig:
    """The genome of a bacterium, base by base, its state carried on: ten minutes; needs bowtie-examples or --data.

    The last tenth is the test.
    """
    data = TextDataConfig(source="e-coli", tokenizer="bases", validation_fraction=0.02, test_fraction=0.1)
    model = LanguageModelConfig(vocab_size=16, d_model=96, layers=(Mamba2Config(d_state=32, d_head=16),) * 3)
    train = TrainConfig(
        budget=BudgetConfig(minutes=10.0),
        optimizer=OptimizerConfig(lr=4e-3, matrices="muon"),
        schedule=ScheduleConfig(kind="linear", min_ratio=0.0),
        reporting=ReportingConfig(evaluate_minutes=1.0, save_minutes=5.0, evaluate_items=98_304, log_every=25),
        batch_size=8,
        length=1024,
        carry_state=True,
        precision="bfloat16" if multiplies_bfloat16() else "float32",
        matmul="fast",
    )
    return RunConfig(model=model, data=data, train=train)


def long_retrieval_262k() -> RunConfig:
    """The symbol behind a key, asked for up to 262,144 steps later, in pieces of 4,096; two layers of Mamba-2."""
    return _retrieval(262_144, n_train=10_240, n_validation=8, n_test=32)


def long_retrieval_1m() -> RunConfig:
    """The symbol behind a key, asked for up to 1,048,576 steps later, in pieces of 4,096; two layers of Mamba-2."""
    return _retrieval(1_048_576, n_train=16_384, n_validation=4, n_test=16)


def _retrieval(length: int, *, n_train: int, n_validation: int, n_test: int) -> RunConfig:
    """Rows that grow from 16 steps: what is learned on many short ones is then kept over long ones. The decays begin so
    slow that a state lasts.
    """
    data = MemoryDataConfig(
        task="retrieval",
        length=length,
        shortest=16,
        n_pairs=1,
        n_train=n_train,
        n_validation=n_validation,
        n_test=n_test,
    )
    layer = Mamba2Config(d_state=16, d_head=16, a_range=(1e-7, 1e-3))
    model = SequenceClassifierConfig(n_classes=8, vocab_size=17, d_model=64, layers=(layer,) * 2, pooling="last")
    train = TrainConfig(
        budget=BudgetConfig(epochs=1),
        optimizer=OptimizerConfig(lr=8e-3),
        schedule=ScheduleConfig(warmup=0.05, min_ratio=0.3),
        reporting=ReportingConfig(evaluate_minutes=None, save_minutes=2.0),
        batch_size=8,
        short_first=True,
        pieces=length // PIECE,
        matmul="fast",
    )
    return RunConfig(model=model, data=data, train=train)


def long_audio_262k() -> RunConfig:
    """Who speaks in half a minute of recordings, 262,144 samples, read in pieces; needs data.folder (--data-dir)."""
    return _audio(JoinConfig(length=262_144, shortest=4096, n_train=1024, n_validation=12, n_test=24))


def long_audio_1m() -> RunConfig:
    """Who speaks in two minutes of recordings, 1,048,576 samples, read in pieces; needs data.folder (--data-dir)."""
    return _audio(JoinConfig(length=1_048_576, shortest=4096, n_train=768, n_validation=6, n_test=12))


def _audio(join: JoinConfig) -> RunConfig:
    """Spoken digits of one speaker, end to end, read in frames of four samples. The rows grow from half a second."""
    data = LabelledDataConfig(source="spoken-digits", label_field="speaker", join=join, normalize="dataset")
    layer = BlockConfig(mixer=S4DConfig(d_state=16), norm="layer", dropout=0.1)
    model = SequenceClassifierConfig(n_classes=6, d_input=1, d_model=64, layers=(layer,) * 3, frame_length=4)
    train = TrainConfig(
        budget=BudgetConfig(epochs=1),
        optimizer=OptimizerConfig(lr=4e-3, dynamics_lr_max=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup=0.05, min_ratio=0.05),
        reporting=ReportingConfig(evaluate_minutes=None, save_minutes=2.0),
        batch_size=8,
        short_first=True,
        pieces=join.length // (2 * PIECE),
        matmul="fast",
    )
    return RunConfig(model=model, data=data, train=train)
