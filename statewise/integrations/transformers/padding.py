"""Padding anywhere, turned into the right padding that models read.

A masked column is a step that does not happen: the state stays, and so do the features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError


def read_mask(attention_mask: Tensor | None, tokens: Tensor) -> Tensor | None:
    """The mask of these tokens (batch, length), or numbers (batch, length, d_input), as (batch, length) bool; None if
    every column is to be read.

    ``attention_mask`` is zeros and ones, (batch, columns); where it has more columns than the tokens, the others were
    read in calls before.

    Errors:  InputError for another shape, as of a mask (batch, 1, length, length), and for other values.
    """
    if attention_mask is None:
        return None
    batch, length = tokens.shape[:2]
    if attention_mask.ndim != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < length:
        raise InputError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} and the tokens {(batch, length)}; expected "
            "(batch, length), or more columns, with these tokens' last"
        )
    mask = attention_mask[:, attention_mask.shape[1] - length :].to(tokens.device)
    real = mask.bool()
    if not bool((mask == real).all()):
        raise InputError("attention_mask has values that are neither 0 nor 1; expected 1 for tokens and 0 for padding")
    return None if bool(real.all()) else real


def to_right_padded(real: Tensor, *columns: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """The real columns of each row, in order, at its beginning; and how many they are.

    Shapes:  real: (batch, length) bool, columns: (batch, length, ...)
             ->   lengths (batch,), and (batch, longest, ...) of each

    >>> real = torch.tensor([[False, True, True], [True, True, True]])
    >>> lengths, (tokens,) = to_right_padded(real, torch.tensor([[0, 5, 6], [7, 8, 9]]))
    >>> lengths.tolist(), tokens.tolist()
    ([2, 3], [[5, 6, 0], [7, 8, 9]])
    """
    lengths = real.sum(1)
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(lengths.max())]
    rows = torch.arange(len(order), device=order.device)[:, None]
    return lengths, [None if column is None else column[rows, order] for column in columns]


def from_right_padded(features: Tensor, before: Tensor, real: Tensor) -> Tensor:
    """Each column's features: those of the row's latest real column, ``before`` where there is none yet.

    Shapes:  features: (batch, longest, d)   before: (batch, d)   real: (batch, length)   ->   (batch, length, d)

    >>> real = torch.tensor([[False, True, False, True]])
    >>> from_right_padded(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[0.0]]), real)[0, :, 0]
    tensor([0., 1., 1., 2.])
    """
    n_read = real.cumsum(1)[..., None].expand(-1, -1, features.shape[-1])
    return torch.cat([before[:, None].to(features.dtype), features], 1).gather(1, n_read)
