"""Whole runs by name: a model of :mod:`statewise.models.presets`, the text, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from statewise.data.text import TextDataConfig
from statewise.data.tokenizers import load_tokenizer
from statewise.models import presets as models
from statewise.train.config import RunConfig, TrainConfig


def demo() -> RunConfig:
    """The hybrid of `make demo`: two and a half minutes on the text of the standard library."""
    train = TrainConfig(
        minutes=2.5,
        batch_size=8,
        length=256,
        lr=4e-3,
        lr_min_ratio=0.02,
        matmul="fast",
        evaluate_minutes=None,
        save_minutes=None,
        log_every=25,
    )
    return RunConfig(model=models.demo(), data=TextDataConfig(), train=train)


def tiny() -> RunConfig:
    """Fifty steps of a model of twenty thousand parameters: seconds."""
    train = TrainConfig(steps=50, batch_size=4, length=128, lr=1e-2, evaluate_items=8192)
    return RunConfig(model=models.tiny(), data=TextDataConfig(), train=train)


PRESETS: dict[str, Callable[[], RunConfig]] = {"demo": demo, "tiny": tiny}


def fit_vocabulary(config: RunConfig) -> RunConfig:
    """The run with the vocabulary of its tokenizer: what a preset needs when the tokenizer is not its own."""
    vocab_size = load_tokenizer(config.data.tokenizer).vocab_size
    return replace(config, model=replace(config.model, vocab_size=vocab_size))
