"""Two operators over one sequence, one of them backwards from its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.operators.base import Operator
from statewise.operators.documents import reverse_index
from statewise.operators.masks import NO_MASKS, Masks, build_masks

COMBINE = ("sum", "concatenate")


@dataclass(frozen=True, eq=False)
class Bidirectional:
    """y = forward(u) + reverse(backward(reverse(u))): both see the present step, and each document is reversed by
    itself.

    The backward operator is defined on the reversed sequence. If it varies with time, give its coefficients in the
    order of u; they are reversed with it. If both have a skip D, both count. There is no state, since the future has
    not been read.

    combine: "sum", or "concatenate" for both side by side on the axis of the channels, forward first, as in
             ``torch.nn.GRU``
    Shapes:  as for both operators; concatenated (batch, length, 2 w, ...)
    Cost:    the cost of both.
    Errors:  InputError for a state, or an unknown ``combine``.
    Source:  Schuster & Paliwal 1997, "Bidirectional recurrent neural networks".
    """

    forward: Operator
    backward: Operator
    combine: str = "sum"

    def __post_init__(self) -> None:
        if self.combine not in COMBINE:
            raise InputError(f"bidirectional: combine={self.combine!r} is unknown; use one of {list(COMBINE)}")

    def __call__(
        self, u: Tensor, state: None = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, None]:
        if state is not None:
            self.initial_state(u.shape[0])
        for operator in (self.forward, self.backward):
            operator.check(u)
        return self.apply(u, build_masks(u, lengths, starts)), None

    def apply(self, u: Tensor, masks: Masks = NO_MASKS) -> Tensor:
        """The call for arguments that are known to fit."""
        order = reversed_order(u, masks)
        ahead, _ = self.forward.apply(u, None, masks)
        backward = self.backward
        if backward.time_varying:
            reversed_ = {name: reverse(getattr(backward, name), order) for name in backward.time_varying}
            backward = replace(backward, **reversed_)  # type: ignore[type-var]
        # documents keep their places when each is reversed, so that the masks hold for the reversed sequence too
        behind, _ = backward.apply(reverse(u, order), None, masks)
        return combine(ahead, reverse(behind, order), self.combine)

    def initial_state(self, batch: int, **options: Any) -> NoReturn:
        raise InputError(
            "a bidirectional operator has no state: it reads each sequence to its end before the first output; "
            "call it on whole sequences, without a state"
        )


def bidirectional(forward: Operator, backward: Operator | None = None, combine: str = "sum") -> Bidirectional:
    """One operator over the sequence and one over the reversed sequence, added or concatenated.

    Without ``backward`` both share their weights: the forward system also reads from the end. See
    :class:`Bidirectional`.

    >>> from statewise.operators.diagonal import DiagonalLTI
    >>> ones = torch.ones(1, 1)
    >>> both = bidirectional(DiagonalLTI(ones / 2, ones, ones))
    >>> both(torch.tensor([0.0, 0.0, 1.0, 0.0]).reshape(1, 4, 1))[0].flatten()
    tensor([0.2500, 0.5000, 2.0000, 0.5000])
    """
    return Bidirectional(forward, forward if backward is None else backward, combine)


def combine(ahead: Tensor, behind: Tensor, how: str) -> Tensor:
    """The outputs of both directions as one: (batch, length, w, ...), or (batch, length, 2 w, ...) if concatenated."""
    return ahead + behind if how == "sum" else torch.cat([ahead, behind], 2)


def reversed_order(x: Tensor, masks: Masks) -> Tensor | None:
    """What :func:`reverse` needs to reverse each document of x (batch, length, ...) within itself; None: whole rows."""
    if masks.lengths is None and masks.starts is None:
        return None
    return reverse_index(masks, x.shape[0], x.shape[1], x.device)


def reverse(x: Tensor, order: Tensor | None) -> Tensor:
    """x (batch, length, ...) with each document reversed within itself; its own inverse. Padding keeps its place."""
    if order is None:
        return x.flip(1)
    return torch.gather(x, 1, order.reshape(*order.shape, *[1] * (x.ndim - 2)).expand(x.shape))
