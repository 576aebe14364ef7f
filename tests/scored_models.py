"""Small language models, and the definition of a score."""

from __future__ import annotations

from typing import Any

import torch

import statewise as sw


def model_of(*layers: Any, **fields: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    return sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=layers, **fields).build().eval()


MAMBA = sw.MambaConfig(d_state=4)
MODELS = {
    "mamba": model_of(MAMBA, MAMBA),
    "hybrid": model_of(MAMBA, sw.AttentionConfig(n_heads=4), sw.S4DConfig(d_state=8)),
    "mamba2": model_of(sw.Mamba2Config(d_head=16, d_state=8)),
    "positions": model_of(sw.H3Config(d_state=4), sw.AttentionConfig(n_heads=4), max_positions=400),
}


def defined(model: sw.LanguageModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """One request alone, in one call."""
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation]))[0][0].double()
    at = torch.arange(len(context) - 1, len(context) + len(continuation) - 1)
    wanted = torch.tensor(continuation)
    likeliest = logits[at].argmax(-1) == wanted
    return float(logits.log_softmax(-1)[at, wanted].sum()), bool(likeliest.all())
