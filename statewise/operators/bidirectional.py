"""Two operators over one sequence, one of them from its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.operators.base import Operator
from statewise.operators.documents import reverse_index
from statewise.operators.masks import build_masks


@dataclass(frozen=True, eq=False)
class Bidirectional:
    """y = forward(u) + reverse(backward(reverse(u))): both see the present step, each document is reversed in itself.

    The backward operator is written for the reversed sequence: where it varies with time, its coefficients are given
    in the order of u, and reversed with it. There is no state, since the future has not been read.

    Shapes:  as both operators have them
    Cost:    that of both.
    Errors:  InputError for a state.
    """

    forward: Operator
    backward: Operator

    def __call__(
        self, u: Tensor, state: None = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, None]:
        if state is not None:
            self.initial_state(u.shape[0])
        masks = build_masks(u.shape[0], u.shape[1], lengths, starts)
        order = None
        if lengths is not None or masks.starts is not None:
            order = reverse_index(masks, u.shape[0], u.shape[1], u.device)
        ahead, _ = self.forward(u, lengths=lengths, starts=starts)
        backward = self.backward
        if backward.time_varying:
            reversed_ = {name: _reverse(getattr(backward, name), order) for name in backward.time_varying}
            backward = replace(backward, **reversed_)  # type: ignore[type-var]
        # documents keep their places when each is reversed, so that the masks hold for the reversed sequence too
        behind, _ = backward(_reverse(u, order), lengths=lengths, starts=starts)
        return ahead + _reverse(behind, order), None

    def initial_state(self, batch: int, **options: Any) -> NoReturn:
        raise InputError(
            "a bidirectional operator has no state: it reads each sequence to its end before the first output; "
            "call it on whole sequences, without a state"
        )


def bidirectional(forward: Operator, backward: Operator) -> Bidirectional:
    """The sum of an operator over the sequence and one over the reversed sequence; see :class:`Bidirectional`."""
    return Bidirectional(forward, backward)


def _reverse(x: Tensor, order: Tensor | None) -> Tensor:
    """x (batch, length, ...) with each document reversed within itself."""
    if order is None:
        return x.flip(1)
    return torch.gather(x, 1, order.reshape(*order.shape, *[1] * (x.ndim - 2)).expand(x.shape))
