"""States over time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.operators.base import Operator

_GROWS = "the state of {} grows with what it reads, so its shape changes; give a mixer with a constant state"


@torch.no_grad()
def states(of: Mixer | Operator, x: Tensor, state: Any = None) -> Any:
    """The state after every step: as ``initial_state`` has it, with an axis of time behind the batch's.

    state:   before the first step; None: at rest
    Shapes:  x: (batch, length, ...), as the call takes it   ->   each tensor (batch, ...) as (batch, length, ...)
    Cost:    one call for each step
    Errors:  InputError for a mixer whose state grows with what it reads, and as the call.

    >>> import statewise as sw
    >>> mixer = sw.S4DConfig(d_state=4).build(d_model=3)
    >>> states(mixer, torch.randn(1, 6, 3)).h.shape
    torch.Size([1, 6, 3, 2, 2])
    """
    if isinstance(of, Mixer) and not of.bounded_state:
        raise InputError(_GROWS.format(type(of).__name__))
    if not x.shape[1]:
        raise InputError("x has no steps, so there are no states; give at least one")
    state = of.initial_state(x.shape[0]) if state is None else state
    found = []
    for t in range(x.shape[1]):
        step = of[t : t + 1] if isinstance(of, Operator) else of
        _, state = step(x[:, t : t + 1], state)
        found.append(state)
    if len({tuple(leaf.shape for leaf in pytree.tree_leaves(one)) for one in (found[0], found[-1])}) > 1:
        raise InputError(_GROWS.format(type(of).__name__))
    return pytree.tree_map(lambda *leaves: torch.stack(leaves, 1), *found)
