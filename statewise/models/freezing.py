"""Inference copies of models: what does not depend on the input is computed once."""

from __future__ import annotations

from typing import cast

from torch import nn

from statewise.mixers.base import Freezable, Mixer, ModuleT, shared_copy


def freeze(model: ModuleT) -> ModuleT:
    """A copy for inference, whose time-invariant mixers discretise once and not at every call.

    The copy obeys the same laws and gives the same outputs. It shares the memory of all parameters and buffers with the
    model, records no gradients for them, and stays in evaluation mode. It is a snapshot: after more training, freeze
    again. Once the model's parameters change, the copy mixes values computed from the old ones with the new ones, and
    gives neither the old model's outputs nor the new one's. It refuses training, drawing or loading parameters, and
    ``set_rate``. It is saved as the model is. A model that is frozen already is returned as it is.

    Cost:    the memory of the prepared operators; see each operator's ``prepare``.
    """
    if isinstance(model, Mixer):
        return cast(ModuleT, model.freeze())
    if is_frozen(model):
        return model
    frozen = shared_copy(model)
    done: dict[int, Mixer] = {}  # a mixer in two places stays one mixer
    for parent in list(frozen.modules()):
        for name, child in list(parent._modules.items()):  # named_children() would name a child once
            if isinstance(child, Mixer):
                setattr(parent, name, done.setdefault(id(child), child.freeze()))
    frozen.eval()
    for module in frozen.modules():
        if isinstance(module, Freezable):
            module.is_frozen = True
    return frozen


def is_frozen(model: nn.Module) -> bool:
    """Whether freezing would change nothing, because it has been done."""
    return isinstance(model, Freezable) and model.is_frozen


def has_operators_to_prepare(model: nn.Module) -> bool:
    """Whether a mixer in the model computes something that does not depend on its input, and is not frozen yet."""
    return any(
        isinstance(module, Mixer) and not module.is_frozen and type(module).freeze is not Mixer.freeze
        for module in model.modules()
    )
