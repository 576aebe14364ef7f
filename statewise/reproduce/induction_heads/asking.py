"""The accuracy of a model at a length that may be far beyond what fits into memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from statewise.data.synthetic_languages import SyntheticLanguageConfig, open_synthetic_language
from statewise.errors import InputError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel

TOKENS_AT_ONCE = 2**14


def ask(
    model: LanguageModel,
    data: SyntheticLanguageConfig,
    *,
    tokens_at_once: int = TOKENS_AT_ONCE,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """How many of the answers of the test split the model names, each the one that follows its row's last token.

    progress: is told the fraction that has been read, after each chunk

    Cost:    O(length) time. Memory for ``tokens_at_once`` tokens: several short rows together, or a part of a long one,
             the state being carried from part to part. (Attention's holds all of the row so far.)
    Errors:  InputError for less than one token at once.
    """
    if tokens_at_once < 1:
        raise InputError(f"tokens_at_once={tokens_at_once} is too few; use at least 1")
    split = open_synthetic_language(data).split("test")
    length, device, right, done = split.shape[0], model.embedding.weight.device, 0, 0
    with evaluation_mode(model), torch.no_grad():
        for drawn in split.in_parts(rows_at_once=max(1, tokens_at_once // length)):
            inputs = torch.from_numpy(drawn.inputs).to(device)
            chunks = inputs.split(max(1, tokens_at_once // len(inputs)), 1)
            state = model.initial_state(len(inputs)) if len(chunks) > 1 else None
            for chunk in chunks:
                features, state = model.features(chunk, state)
                done += chunk.numel()
                if progress is not None:
                    progress(done / (len(split) * length))
            named = model.head(features[:, -1]).argmax(-1).cpu()
            right += int((named == torch.from_numpy(drawn.answers[:, 0])).sum())
    return {"accuracy": right / len(split), "right": right, "rows": len(split)}
