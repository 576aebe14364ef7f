"""What goes on inside a trained H3 layer: its signals on some text, and what each head is good for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import ConfigError
from statewise.insight import Signals, h3_systems, h3_trace, layer_input
from statewise.mixers.h3 import H3
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel


def h3_layers(model: LanguageModel) -> dict[int, H3]:
    """The H3 mixers by the number of their layer.

    Errors:  ConfigError if there is none.
    """
    found = {i: block.mixer for i, block in enumerate(model.blocks) if isinstance(block.mixer, H3)}
    if not found:
        raise ConfigError("the model has no H3 layer to look into; give one that has")
    return found


def signals(model: LanguageModel, layer: int, tokens: Tensor) -> Signals:
    """Those of the layer while the model reads (rows, length) tokens."""
    return h3_trace(*layer_input(model, tokens, layer))


@torch.no_grad()
def score(model: LanguageModel, tokens: Tensor, targets: Tensor, answers: Tensor) -> dict[str, float]:
    """Accuracy and nats of the answers; shapes (rows, length), ``answers`` saying where they are due."""
    with evaluation_mode(model):
        features, _ = model.features(tokens)
        logits = model.head(features[answers])
    wanted = targets[answers]
    right = (logits.argmax(-1) == wanted).float().mean()
    return {"accuracy": float(right), "nats": float(F.cross_entropy(logits.float(), wanted))}


@contextmanager
def without_heads(mixer: H3, heads: Sequence[int]) -> Iterator[None]:
    """What these heads give is zero before W_O reads it."""
    d_head = mixer.config.d_head
    keep = torch.ones(mixer.d_model)
    for head in heads:
        keep[head * d_head : (head + 1) * d_head] = 0

    def removed(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (arguments[0] * keep.to(arguments[0]),)

    hook = mixer.out_proj.register_forward_pre_hook(removed)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def with_shift_taps(model: LanguageModel, layer: int, keep: Sequence[int], *, others: bool = False) -> LanguageModel:
    """A copy whose shift SSM in that layer has only these taps, the others being zero; ``others``: all but these."""
    changed = copy.deepcopy(model)
    mixer = h3_layers(changed)[layer]
    taps = h3_systems(mixer)[0].taps
    mask = torch.zeros(taps.shape[1])
    mask[[i for i in keep if i < taps.shape[1]]] = 1
    mixer.dynamics.shift_B.zero_()[:, 0] = 1  # then the taps are C itself
    mixer.readout.shift_D.zero_()
    mixer.readout.shift_C.copy_(taps * (1 - mask if others else mask))
    return changed


def half_reach(taps: Tensor) -> Tensor:
    """The last step at which a filter is still at least half of its largest tap: (width, length) -> (width,) int64."""
    size = taps.abs()
    above = size >= 0.5 * size.amax(1, keepdim=True)
    return (above * torch.arange(size.shape[1])).amax(1)
