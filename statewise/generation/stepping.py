"""How tokens are read one by one behind the prompt: by a decoder in C, by a CUDA graph, or by the model itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from statewise import kernels, native
from statewise.decoding import Decoder, check_weights, why_not, with_weights
from statewise.decoding.static import StaticRun, why_not_recorded
from statewise.errors import InputError
from statewise.generation.reading import Reading, extend, extend_by_one
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import is_quantised

WORTH_PACKING = 16  # tokens: with fewer, packing the weights takes longer than it saves
WORTH_RECORDING = 32  # tokens: with fewer, recording a graph takes longer than it saves

Step = Callable[[Reading, Tensor, Tensor | None, Tensor | None], Reading]


class Stepping(NamedTuple):
    """way: "C", "CUDA graph" or "PyTorch"; reason: why this one; others: why each other way is not used."""

    way: str
    reason: str
    others: dict[str, str]

    def __str__(self) -> str:
        others = "; ".join(f"{way}: {why}" for way, why in self.others.items())
        return f"generate reads tokens by {self.way}: {self.reason} (not by {others})"


def explain_stepping(model: LanguageModel) -> Stepping:
    """How :func:`~statewise.generate` reads the tokens it writes with this model, where it is and as it is."""
    device = model.embedding.weight.device
    if device.type == "cuda":
        unused = {"C": f"the model is on {device}"}
        reason = _not_asked() or why_not_recorded(model)
        if reason is not None:
            return Stepping(
                "PyTorch", "each kernel of a step is launched from Python", {**unused, "CUDA graph": reason}
            )
        text = f"one launch for all layers, recorded once, for more than {WORTH_RECORDING} tokens"
        return Stepping("CUDA graph", text, {**unused, "PyTorch": "a launch for each kernel takes longer"})
    unused = {"CUDA graph": f"the model is on {device}"}
    reason = (
        why_not(model) if kernels.backend.backend() != "torch" else "kernels.use or STATEWISE_KERNELS chose PyTorch"
    )
    if reason is not None:
        return Stepping("PyTorch", "a call of the model for each token", {**unused, "C": reason})
    text = f"one call for all layers, for more than {WORTH_PACKING} tokens"
    return Stepping("C", text, {**unused, "PyTorch": "several times slower"})


def _not_asked() -> str | None:
    """Why no graph is recorded on this card, whatever the model."""
    asked = kernels.backend.backend()
    if asked in ("c", "torch"):
        return f'kernels.use or STATEWISE_KERNELS chose "{asked}"'
    if asked == "auto" and torch.version.hip is not None:
        return 'not yet tried on a card of AMD\'s; kernels.use("triton") asks for it'
    return None


def stepping(
    model: LanguageModel, weights: str | Decoder | None, n_tokens: int
) -> Callable[[LanguageModel, Reading], Step]:
    """How tokens are read one by one, once the prompt has been: given its reader and Reading, a function that extends.

    Errors:  InputError for ``weights`` that this model cannot have.
    """
    device = model.embedding.weight.device

    def by_decoder(reader: LanguageModel, reading: Reading) -> Step:
        decoder = weights if isinstance(weights, Decoder) else Decoder(model, weights)
        return partial(extend_by_one, decoder.run(reading.state))

    def by_model(reader: LanguageModel, reading: Reading) -> Step:
        if weights is not None:
            reader = with_weights(model, str(weights), len(reading.logits))
        wanted = device.type == "cuda" and n_tokens > WORTH_RECORDING and len(reading.logits) and not _not_asked()
        if wanted and why_not_recorded(reader) is None:
            return partial(extend_by_one, StaticRun(reader, reading.state))
        return partial(extend, reader)

    return by_decoder if wants_decoder(model, weights, n_tokens) else by_model


def wants_decoder(model: LanguageModel, weights: str | Decoder | None, n_tokens: int) -> bool:
    """Whether so many tokens behind a prompt are read by a decoder.

    Errors:  InputError for ``weights`` that this model cannot have.
    """
    on_cuda = model.embedding.weight.device.type == "cuda"
    if isinstance(weights, Decoder):
        if weights.config != model.config:
            raise InputError(
                "the decoder given as weights was made from a model with a different configuration; make one from "
                "this model"
            )
        return True
    if weights is None:
        worth = n_tokens > WORTH_PACKING or is_quantised(model)  # which a call of the model unpacks for each token
        wanted = not on_cuda and worth and kernels.backend.backend() != "torch"
        return wanted and why_not(model) is None
    check_weights(model, weights)
    return native.available() and not on_cuda
