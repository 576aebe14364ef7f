"""Models and tokens to evaluate, and their negative log-likelihood."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import statewise as sw

DOCUMENT = 30


MAMBA = sw.Mamba2Config(d_state=8, d_head=8, chunk_length=16)


def build(attention: sw.AttentionConfig | None, *, vocab_size: int = 31) -> sw.LanguageModel:
    """In float64, with predictions far from uniform."""
    torch.manual_seed(0)
    layers = (MAMBA,) if attention is None else (MAMBA, attention)
    model = sw.LanguageModelConfig(vocab_size=vocab_size, d_model=16, layers=layers, embedding_std=0.3).build().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(4)
    return model


def nats_of(model: sw.LanguageModel, tokens: torch.Tensor, n_last: int | None = None) -> float:
    """The definition: minus the log-probability of each token given all before it, summed; of the last n only."""
    with torch.no_grad():
        logits, _ = model(tokens[None, :-1])
    losses = -logits[0].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return float(losses[-n_last if n_last else 0 :].sum())


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)
