"""A model in evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module has its own training flag back, also where they differed.

    >>> model = nn.Dropout(0.5)
    >>> with evaluation_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        vars(module)["training"] = False  # nn.Module's __setattr__ would cost a tenth of a small model's step
    try:
        yield
    finally:
        for module in training:
            vars(module)["training"] = True
