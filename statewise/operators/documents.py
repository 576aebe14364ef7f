"""Packed documents laid out as rows of their own: what a convolution needs, since nothing may pass a start."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.operators.masks import Masks


class Rows(NamedTuple):
    """Documents of about one length, one a row.

    places: (n_rows, longest) int64, each step's place in the input with batch and length joined; 0 in the padding
    lengths: (n_rows,) int64   valid: (n_rows, longest) bool
    row: (n_rows,) int64, the row of the input each comes from
    continues: (n_rows,) bool, whether the document is the one that the incoming state belongs to
    last: (n_rows,) bool, whether it is the last of its row, whose final state is the row's
    """

    places: Tensor
    lengths: Tensor
    valid: Tensor
    row: Tensor
    continues: Tensor
    last: Tensor


def document_rows(masks: Masks, batch: int, length: int) -> list[Rows]:
    """Every document of a batch, in groups whose lengths differ by less than a factor of two.

    So the padding is never more than the text. Every row of the input has at least one document, of length 0 if the
    row is empty, so that each row has a last one. Waits for the device: the shapes depend on where documents begin.
    """
    assert masks.starts is not None
    device, here = masks.starts.device, torch.device("cpu")  # named each time: the process may have another default
    starts = masks.starts.to(here)
    ends = torch.full((batch,), length, device=here) if masks.lengths is None else masks.lengths.to(here)
    at = starts.nonzero()  # sorted by row, then by time
    rows = torch.arange(batch, device=here)
    first = torch.stack([rows, torch.zeros_like(rows)], 1)
    begins_at_0 = starts[:, 0] if length else torch.zeros_like(rows, dtype=torch.bool)
    places = torch.cat([first[~begins_at_0], at])
    continues = torch.arange(len(places), device=here) < len(places) - len(at)
    order = torch.argsort(places[:, 0] * (length + 1) + places[:, 1], stable=True)
    places, continues = places[order], continues[order]
    row, begin = places.unbind(1)
    last = torch.cat([row[1:] != row[:-1], row.new_ones(1, dtype=torch.bool)]) if len(row) else row.bool()
    end = torch.where(last, ends[row], torch.cat([begin[1:], begin[:1]]))
    n = end - begin
    buckets = torch.where(n > 0, n.clamp(min=1).double().log2().floor() + 1, 0).long()
    groups = []
    for bucket in buckets.unique().tolist():
        chosen = buckets == bucket
        lengths = n[chosen]
        time = torch.arange(int(lengths.max()), device=here)
        valid = time < lengths[:, None]
        index = torch.where(valid, (row[chosen] * length + begin[chosen])[:, None] + time, 0)
        parts = (index, lengths, valid, row[chosen], continues[chosen], last[chosen])
        groups.append(Rows(*(part.to(device) for part in parts)))
    return groups


def reverse_index(masks: Masks, batch: int, length: int, device: torch.device) -> Tensor:
    """(batch, length) int64: where each step comes from when every document is reversed within itself.

    Documents keep their places, so ``lengths`` and ``starts`` hold for the reversed sequence as well; padding stays.
    """
    time = torch.arange(length, device=device).expand(batch, length)
    ends = torch.full((batch, 1), length, device=device) if masks.lengths is None else masks.lengths[:, None]
    if masks.starts is None:
        begin, end = torch.zeros_like(time), ends.expand(batch, length)
    else:
        begin = torch.where(masks.starts, time, 0).cummax(1).values
        following = torch.where(masks.starts, time, length)
        following = torch.cat([following[:, 1:], following.new_full((batch, 1), length)], 1)
        end = torch.minimum(following.flip(1).cummin(1).values.flip(1), ends)
    return torch.where(time < ends, begin + end - 1 - time, time)
