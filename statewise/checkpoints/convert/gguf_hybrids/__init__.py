"""Hybrids of llama.cpp: a file a family, which is data, and what reads and writes it.

Source: ``conversion`` and ``src/models`` of https://github.com/ggml-org/llama.cpp; the ``gguf`` package, 0.19.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from statewise.checkpoints.convert.entries import write_entries
from statewise.checkpoints.convert.gguf_hybrids import falcon_h1, granite, jamba, kimi_linear, lfm2, nemotron_h, qwen
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture
from statewise.checkpoints.convert.gguf_values import Value
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModelConfig

# A model that several could hold is written as the first of them.
ARCHITECTURES: Mapping[str, Architecture] = {
    one.name: one
    for one in (
        granite.ARCHITECTURE,
        falcon_h1.ARCHITECTURE,
        nemotron_h.DENSE,
        nemotron_h.MOE,
        jamba.ARCHITECTURE,
        lfm2.PLAIN,
        lfm2.MOE,
        qwen.QWEN35,
        qwen.QWEN3_NEXT,
        kimi_linear.ARCHITECTURE,
    )
}


def write(
    config: LanguageModelConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, dict[str, Value], dict[str, Tensor]]:
    """The first architecture that has the model, its values and its tensors.

    Errors:  CheckpointError with the reason of each that has its layers but not the whole; with "" if none has.
    """
    reasons = []
    for one in ARCHITECTURES.values():
        try:
            folded, ours = one.folded(config, tensors)
            values = one.values(folded)
            theirs = write_entries(one.entries(folded), ours)
            one.require_same(folded, values, {name: tuple(tensor.shape) for name, tensor in theirs.items()})
        except CheckpointError as error:
            reasons.append(f"as {one.name}: {error}")
        else:
            if (told := one.warns(folded, ours)) is not None:
                warnings.warn(told, stacklevel=2)
            return one.name, values, theirs
    raise CheckpointError("; ".join(reason for reason in reasons if "has no layer of" not in reason))
