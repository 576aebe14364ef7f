"""What a layer of a model reads."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.models.base import Model
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel


def layers_of(model: Model, kind: type[Mixer] | tuple[type[Mixer], ...] = Mixer) -> dict[int, Mixer]:
    """The mixers of a kind, by the number of their layer.

    >>> import statewise as sw
    >>> from statewise.mixers.s4d import S4D
    >>> layers = (sw.S4DConfig(d_state=4), sw.AttentionConfig(n_heads=2), sw.S4DConfig(d_state=4))
    >>> model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=layers).build()
    >>> [number for number in layers_of(model, S4D)]
    [0, 2]
    """
    return {i: block.mixer for i, block in enumerate(model.blocks) if isinstance(block.mixer, kind)}


@torch.no_grad()
def layer_input(model: Model, inputs: Tensor, layer: int) -> tuple[Mixer, Tensor]:
    """A layer's mixer, and what it reads while the model, in evaluation mode, reads ``inputs``: behind the layer's
    norm.

    Shapes:  inputs: as the model takes them, such as tokens (batch, length)   ->   x: (batch, length, d_model)
    Errors:  InputError for a layer that the model does not have, and as the model's call.
    """
    n_layers = len(model.blocks)
    if isinstance(layer, bool) or not isinstance(layer, int) or not -n_layers <= layer < n_layers:
        raise InputError(
            f"layer={layer!r} is not one of this {type(model).__name__}; it has layers 0 to {n_layers - 1}"
        )
    mixer = model.blocks[layer].mixer
    seen: list[Tensor] = []
    hook = mixer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with evaluation_mode(model):
            if isinstance(model, LanguageModel):
                model.features(inputs)  # the logits of all positions are of no use here
            else:
                model(inputs)
    finally:
        hook.remove()
    return mixer, seen[0]
