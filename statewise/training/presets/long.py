"""Long tasks, for which a state is carried or sequences are read in pieces."""

from __future__ import annotations

from statewise.data.text import TextDataConfig
from statewise.mixers.mamba2 import Mamba2Config
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
