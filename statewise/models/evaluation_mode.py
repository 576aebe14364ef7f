"""A model in evaluation mode for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from statewise.kernels.exact.switch import exact

_lock = threading.Lock()
_inside: dict[int, tuple[int, list[nn.Module]]] = {}  # by id of the model: how many are inside, whose flags come back


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module has its own training flag back, also where they differed. If the model
    is exact by itself, what is computed beside its calls is in exact mode, too: so no generator yields inside.

    Several threads may be inside with one model. The last one to leave gives the flags back.

    >>> model = nn.Dropout(0.5)
    >>> with evaluation_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    with _lock:
        n_inside, training = _inside.get(id(model), (0, []))
        new = [module for module in model.modules() if module.training] if model.training else []
        for module in new:
            vars(module)["training"] = False  # nn.Module's __setattr__ would cost a tenth of a small model's step
        _inside[id(model)] = n_inside + 1, training + new
    try:
        with exact(getattr(model, "_exact", False) is True):  # a look at each layer would cost as much as above
            yield
    finally:
        with _lock:
            n_inside, training = _inside.pop(id(model))
            if n_inside > 1:
                _inside[id(model)] = n_inside - 1, training
            else:
                for module in training:
                    vars(module)["training"] = True
