"""A mixer's call as one call for every step, which exact mode makes of those that have no other exact form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.operators.base import choose_rows
from statewise.operators.folding import fold
from statewise.operators.masks import Masks, build_masks, mask_time

if TYPE_CHECKING:
    from statewise.mixers.base import Mixer


def by_steps(mixer: Mixer, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
    """One call of the mixer's ``mix`` for every step: slow, and the same however the sequence is cut."""
    begin = mixer.initial_state(x.shape[0], device=x.device) if state is None else state
    carry, form = pytree.tree_flatten(begin)
    steps = {"x": x, "valid": masks.valid, "starts": masks.starts, "observed": masks.observed}
    given = {name: m for name, m in steps.items() if m is not None}

    def step(carry: list[Tensor], inputs: list[Tensor], _: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        now = pytree.tree_unflatten(carry, form)
        at = {name: m.unsqueeze(1) for name, m in zip(given, inputs)}
        own = build_masks(at["x"], None, at.get("starts"))._replace(observed=at.get("observed"))
        y, after = mixer.mix(at["x"], now, own)
        if "valid" in at:
            after = choose_rows(at["valid"][:, 0], after, now)
        return pytree.tree_leaves(after), [y.squeeze(1)]

    end, (y,) = fold(step, carry, [*given.values()], list(mixer.parameters()))
    return mask_time(y, masks.valid), None if state is None else pytree.tree_unflatten(end, form)
