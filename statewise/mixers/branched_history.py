"""The history of continuations of one prefix: the prefix is there once, and each continuation has a tail of its own.

A continuation's slots count on from those of its prefix. What is before the ``border``, where the prefix ended, lies in
the prefix's own state, which is shared as it is: nobody copies it, and nobody writes to it. What is behind it lies in
the tails, one buffer of a row for each continuation. A key stays in the row that it was written to: where beams
continue another one, only the table of :class:`Tails` changes, which says of each slot in whose row it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.mixers.attention_state import AttentionState, Context, Dropout
from statewise.operators.state_shape import StandIn


class Tails:
    """Where the slots behind the prefix lie, the same for all layers.

    source: (n_rows, capacity) int64, in whose row slot i of a continuation lies; its own beyond the slots in use
    n_used: slots in use, of the row that has most
    """

    def __init__(self, n_rows: int, capacity: int, device: torch.device | str | None) -> None:
        self.source = torch.arange(n_rows, device=device)[:, None].repeat(1, capacity)
        self.n_used = 0
        self.parted = False  # whether a slot lies in another row than its own

    @property
    def capacity(self) -> int:
        return self.source.shape[1]

    def take(self, parents: Tensor) -> None:
        """Row i continues where row ``parents[i]`` is."""
        self.source[:, : self.n_used] = self.source[parents, : self.n_used]
        self.parted = True

    def grow(self) -> None:
        """To twice the capacity."""
        own = torch.arange(len(self.source), device=self.source.device)[:, None].repeat(1, self.capacity)
        self.source = torch.cat((self.source, own), 1)


@dataclass
class BranchedHistory(StandIn):
    """What a layer gets instead of an ``AttentionState`` for one token of each continuation.

    It implements :class:`~statewise.mixers.attention_state.History`. The row i * n + j is continuation j of row i of
    the prefix. A call writes into the tails in place, which belong to whoever made this.

    prefix:  of b rows, shared with everybody who has it
    row, border: (b * n,) int64, the row's row of the prefix, and where that ended
    keys, values: (b * n, capacity, n_kv_heads, d_head), the tails
    start, end, position: (b * n,) int64, as in an ``AttentionState``, in the slots of the row's prefix

    Cost:    of a call O(history) for each row, and memory for one layer's scores; where beams have parted, also a copy
             of the tails, for the call. In exact mode everything is copied for the call.
    """

    prefix: AttentionState
    n: int
    tails: Tails
    row: Tensor
    border: Tensor
    keys: Tensor
    values: Tensor
    start: Tensor
    end: Tensor
    position: Tensor

    @classmethod
    def of(cls, prefix: AttentionState, n: int, tails: Tails) -> BranchedHistory:
        """n continuations of each row, before their first token."""
        start, end, position = (x.repeat_interleave(n) for x in (prefix.start, prefix.end, prefix.position))
        row = torch.arange(len(end), device=end.device) // n
        room = (len(end), tails.capacity)
        keys, values = (x.new_zeros(*room, *x.shape[2:]) for x in (prefix.keys.detach(), prefix.values.detach()))
        return cls(prefix, n, tails, row, end.clone(), keys, values, start, end, position)

    def grow(self) -> None:
        """To the capacity of ``tails``."""
        more = self.tails.capacity - self.keys.shape[1]
        keys, values = (x.new_zeros(len(x), more, *x.shape[2:]) for x in (self.keys, self.values))
        self.keys, self.values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)

    def take(self, parents: Tensor) -> None:
        """Row i continues where row ``parents[i]`` of the same prefix is, of which ``tails`` has been told."""
        for count in (self.start, self.end, self.position):
            count.copy_(count[parents])

    def extend(self, own: Context) -> tuple[Context, BranchedHistory]:
        if own.keys.shape[1] != 1:
            raise InputError(f"continuations read one token at a time, not {own.keys.shape[1]}")
        rows, tail = torch.arange(len(self.end), device=self.end.device), self.end - self.border
        self.keys[rows, tail] = own.keys[:, 0].to(self.keys.dtype)
        self.values[rows, tail] = own.values[:, 0].to(self.values.dtype)
        start, position = self.start, self.position
        if own.began is not None:
            began = own.began[:, 0] >= 0
            start, position = self.end.where(began, start), position.masked_fill(began, 0)
        count = 1 if own.lengths is None else own.lengths
        after = BranchedHistory(
            *(self.prefix, self.n, self.tails, self.row, self.border, self.keys, self.values),
            *(start, self.end + count, position + count),
        )
        used = slice(self.tails.n_used + 1)
        keys, values = (self._of_rows(x[:, used]) for x in (self.keys, self.values))
        return own._replace(keys=keys, values=values, n_history=tail, oldest=start - self.end), after

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        """Scores of the prefix's keys, which all continuations ask as one, and of the tails'; then one softmax."""
        if is_exact():
            return self.copied(context).attend(q, dropout)
        q = q.to(self.keys.dtype) * q.shape[-1] ** -0.5
        n_kv_heads, tail = context.keys.shape[2], context.n_history
        assert isinstance(tail, Tensor)  # as extend has it
        assert context.oldest is not None
        now = self.border + tail  # the slot of each row's query
        low = now + context.oldest
        if context.window is not None:
            low = torch.maximum(low, now - (context.window - 1))
        places = self.border[:, None] + torch.arange(context.keys.shape[1], device=q.device)
        hidden_tail = (places < low[:, None]) | (places > now[:, None])
        prefix_values, found = _values(self.prefix, context), []
        for i, length in enumerate(self.prefix.end.tolist()):
            own = slice(i * self.n, (i + 1) * self.n)
            heads = q[own, 0].unflatten(1, (n_kv_heads, -1))  # (n, n_kv_heads, shared, d_head)
            old_keys, old_values = self.prefix.keys[i, :length], prefix_values[i, :length]
            together = heads.transpose(0, 1).flatten(1, 2)  # (n_kv_heads, n * shared, d_head)
            old = (together @ old_keys.permute(1, 2, 0)).unflatten(1, (self.n, -1))
            hidden = torch.arange(length, device=q.device) < low[own, None]
            old = old.masked_fill(hidden[:, None], -torch.inf)
            new = torch.einsum("nghd,ntgd->gnht", heads, context.keys[own])
            new = new.masked_fill(hidden_tail[own, None], -torch.inf)
            weights = torch.cat((old, new), -1).softmax(-1).to(self.values.dtype)
            old, new = weights.split((length, new.shape[-1]), -1)
            y = (old.flatten(1, 2) @ old_values.transpose(0, 1)).unflatten(1, (self.n, -1))
            y = y + torch.einsum("gnht,ntgd->gnhd", new, context.values[own])
            found.append(y.transpose(0, 1).flatten(1, 2))
        return torch.cat(found)[:, None] if found else q.new_zeros(0, 1, q.shape[2], context.values.shape[-1])

    def copied(self, context: Context) -> Context:
        """The same context in the plain way, the prefix and the tails of each row in one copy: the definition."""
        tail = context.n_history
        assert isinstance(tail, Tensor)
        length = int(self.prefix.end.max()) + context.keys.shape[1]
        slots = torch.arange(length, device=tail.device).expand(len(tail), -1)
        before, behind = slots < self.border[:, None], slots - self.border[:, None]
        rows = torch.arange(len(tail), device=tail.device)[:, None]

        def joined(prefix: Tensor, tails: Tensor) -> Tensor:
            old = prefix[self.row[:, None], slots.clamp(max=prefix.shape[1] - 1)] if prefix.shape[1] else tails[:, :1]
            new = tails[rows, behind.clamp(0, tails.shape[1] - 1)]
            return torch.where(before[..., None, None], old, new)

        keys = joined(self.prefix.keys, context.keys)
        values = joined(_values(self.prefix, context), context.values)
        return context._replace(keys=keys, values=values, n_history=self.border + tail)

    def whole(self) -> AttentionState:
        """A copy of each continuation's history, as an ``AttentionState``."""
        used = slice(self.tails.n_used + 1)
        keys, values = (self._of_rows(x[:, used]) for x in (self.keys, self.values))
        copied = self.copied(Context(keys, values, n_history=self.end - self.border))
        return AttentionState(
            copied.keys, copied.values, self.start.clone(), self.end.clone(), self.position.clone(), self.end.clone()
        )

    def _of_rows(self, tails: Tensor) -> Tensor:
        """What each continuation finds in its tail."""
        if not self.tails.parted:
            return tails
        source = self.tails.source[:, : tails.shape[1]]
        return tails[source, torch.arange(tails.shape[1], device=tails.device)]


def _values(prefix: AttentionState, context: Context) -> Tensor:
    """The prefix's values; where they have no width, they are what the context has: the first numbers of the keys."""
    width = context.values.shape[-1]
    return prefix.values if prefix.values.shape[-1] == width else prefix.keys[..., :width]
