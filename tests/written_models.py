"""Small models that write, and prompts that were read."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import statewise as sw
from statewise.generation import Reading, Token

MAMBA = sw.Mamba2Config(d_state=8, d_head=8, n_groups=2, chunk_length=16)


def build(window: int | None, *, vocab_size: int = 31, dtype: torch.dtype = torch.float64) -> sw.LanguageModel:
    """A small hybrid with logits well apart, whose state is not forgotten at once."""
    torch.manual_seed(0)
    layers = (MAMBA, sw.AttentionConfig(n_heads=2, window=window))
    config = sw.LanguageModelConfig(
        vocab_size=vocab_size, d_model=16, layers=layers, embedding_std=0.3, tie_embeddings=False
    )
    model = config.build().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(4)
    return model


def ids_of(tokens: Iterator[Token]) -> list[list[int]]:
    """The ids of each row, without what follows its end."""
    columns = [token.ids.tolist() for token in tokens]
    return [[i for i in row if i >= 0] for row in zip(*columns)]


def with_readings(stream: Iterator[Token]) -> tuple[list[Token], list[Reading]]:
    """The tokens, and the reading of each while it is there."""
    tokens, readings = [], []
    for token in stream:
        tokens.append(token)
        readings.append(token.reading)
    return tokens, readings
