"""Running a model for its outputs only: no gradients, no dropout, and nothing about the model changed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside; every module's own training flag is back afterwards.

    It is ``no_grad`` and not ``inference_mode``, because states leave it: a tensor made under ``inference_mode``
    can neither be saved for a backward pass nor be appended to in place outside, so a state that was read here
    could not be given to a model that trains.

    >>> model = nn.Dropout(0.5)
    >>> with inference(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    training = [module for module in model.modules() if module.training] if model.training else []
    with torch.no_grad():
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True
