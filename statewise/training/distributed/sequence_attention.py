"""Attention to keys and values that lie on several ranks: fetched whole, or sent round a ring by PyTorch on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from statewise.errors import ConfigError, InputError
from statewise.mixers.attention_state import Context, Dropout
from statewise.models.base import advance
from statewise.operators.masks import build_masks
from statewise.operators.state_shape import StandIn
from statewise.training.distributed.sequence_relay import Line

ATTENTION = ("auto", "gather", "ring")
HALVES = (torch.float16, torch.bfloat16)
Ring = Callable[[Tensor, Tensor, Tensor], Tensor | None]


class Places(NamedTuple):
    """Where this rank's piece lies in the whole rows.

    before:    (batch,) int64, tokens of the row's document in earlier pieces, and in what was read before this call
    after:     (batch,) int64, the same behind the last piece
    lengths:   how many steps each rank's piece has
    has_start: whether a document begins in this piece or in an earlier one
    any_start: or in any, which all ranks say alike
    """

    before: Tensor
    after: Tensor
    lengths: list[int]
    has_start: bool
    any_start: bool

    def n_earlier(self, rank: int) -> int:
        return sum(self.lengths[:rank])


def find_places(
    line: Line, x: Tensor, position: Tensor | None, lengths: Tensor | None, starts: Tensor | None
) -> Places:
    """From what every rank knows of its own piece x (batch, length, ...); a few integers a row travel.

    position: (batch,) where the whole rows begin; None: at 0. The host waits for the device.
    """
    masks = build_masks(x, lengths, starts)  # refuses what does not fit, before anybody waits for it
    at = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    own = advance(at, x, masks)
    begins = advance(at - x.shape[1] - 1, x, masks) >= 0  # a count goes on below 0, and restarts at 0
    known = torch.stack([own, begins.long(), torch.full_like(own, x.shape[1])])
    every = [torch.empty_like(known) for _ in range(line.size)]
    dist.all_gather(every, known, group=line.group)
    positions = [at if position is None else position]
    for count, begins, _ in every:
        positions.append(torch.where(begins.bool(), count, positions[-1] + count))
    if not len(at):
        return Places(at, at, [x.shape[1]] * line.size, False, False)
    told = torch.stack([torch.stack([step.max(), begins.max()]) for _, begins, step in every]).tolist()
    piece_lengths = [length for length, _ in told]
    if min(piece_lengths) == 0:
        raise InputError(f"the ranks' pieces have {piece_lengths} steps; attention needs at least one in each piece")
    began = [bool(begun) for _, begun in told]
    return Places(positions[line.rank], positions[-1], piece_lengths, any(began[: line.rank + 1]), any(began))


class SpreadHistory(StandIn):
    """The history of a call that reads one piece of every row: the keys and values of the pieces before it, which other
    ranks hold and which are fetched for this call.

    It implements :class:`~statewise.mixers.attention_state.History`, takes a state's place for one call, and comes
    back as it is: there is nothing to hand on. With a window only what the first query of the next piece can see leaves
    a rank.

    ring: q, k, v of this piece -> its outputs, by causal attention to all pieces without a mask; None, or where it
          gives None: keys and values are gathered
    """

    def __init__(self, line: Line, places: Places, ring: Ring | None) -> None:
        self.line, self.places = line, places
        self.position = places.before
        # What decides is the same on all ranks, of which none may wait for others that go the other way
        self._ring = ring if len(set(places.lengths)) == 1 and not places.any_start else None

    def extend(self, own: Context) -> tuple[Context, SpreadHistory]:
        """The keys and values of earlier pieces are counted here, and fetched when they are looked at."""
        n_history = sum(self._sent(own.window)[: self.line.rank])
        if own.window is not None:
            n_history = min(n_history, own.window - 1)
        return own._replace(n_history=n_history, oldest=-self.position if self.places.has_start else None), self

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        if self._ring is not None and context.window is None and dropout is None:
            y = self._ring(q, context.keys, context.values)
            if y is not None:
                return y
        return self._fetched(context).attend(q, dropout)

    def _fetched(self, context: Context) -> Context:
        """With the keys and values of earlier pieces before its own."""
        both, sent = torch.cat((context.keys, context.values), 2), self._sent(context.window)
        if any(sent):
            earlier = _Earlier.apply(both[:, both.shape[1] - sent[self.line.rank] :], self.line, sent)
            both = torch.cat((earlier[:, earlier.shape[1] - context.n_history :], both), 1)
        keys, values = both.chunk(2, 2)
        return context._replace(keys=keys, values=values)

    def _sent(self, window: int | None) -> list[int]:
        """The last so many steps of each rank's piece are sent."""
        return [length if window is None else min(length, window - 1) for length in self.places.lengths]


class _Earlier(torch.autograd.Function):
    """What this rank sends, (batch, lengths[rank], ...) -> what those before it send, (batch, their sum, ...).
    Backward: of each rank's part what all behind it found, summed.

    Recomputed under gradient checkpointing it fetches again, rather than to keep what other ranks hold.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, line: Line, lengths: list[int]) -> Tensor:
        ctx.line, ctx.lengths = line, lengths
        padded = F.pad(own, (0, 0) * (own.ndim - 2) + (0, max(lengths) - own.shape[1])).contiguous()
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded, group=line.group)
        earlier = [piece[:, :length] for piece, length in zip(every[: line.rank], lengths)]
        return torch.cat(earlier, 1) if earlier else own[:, :0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        line, lengths = ctx.line, ctx.lengths
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        shape = (len(lengths), gradient.shape[0], max(lengths), *gradient.shape[2:])
        every = torch.zeros(shape, dtype=dtype, device=gradient.device)
        for piece, part in zip(every, gradient.split(lengths[: line.rank], 1) if line.rank else ()):
            piece[:, : part.shape[1]] = part
        dist.all_reduce(every, group=line.group)
        return every[line.rank, :, : lengths[line.rank]].to(gradient.dtype), None, None


def choose_ring(attention: str, line: Line, device: torch.device) -> Ring | None:
    """PyTorch's context parallelism for full attention without masks, or None to gather keys and values.

    attention: "auto": the ring on CUDA, "gather" or "ring". With a window, and where documents begin within the rows,
    which the ring has no masks for, keys and values are gathered in any case; also in float32, for pieces whose length
    is not a multiple of 32, and where weights are dropped.

    Errors:  ConfigError if you ask for the ring by name and it cannot be used.
    """
    if attention not in ATTENTION:
        raise ConfigError(f"sequence parallelism: attention={attention!r} is unknown; use one of {list(ATTENTION)}")
    if attention == "gather" or (attention == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ConfigError('sequence parallelism: attention="ring" runs on CUDA only; use attention="gather"')
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import _cp_options
    except ImportError:
        if attention == "auto":
            return None
        raise ConfigError(
            f'sequence parallelism: attention="ring" needs torch.distributed.tensor.experimental.context_parallel, '
            f'which PyTorch {torch.__version__} does not have; use attention="gather"'
        ) from None
    mesh = DeviceMesh.from_group(line.group, device.type)

    @contextmanager
    def spread() -> Iterator[None]:
        """scaled_dot_product_attention of pieces that lie in the order of the ranks."""
        balanced = _cp_options.enable_load_balance
        _cp_options.enable_load_balance = False  # it would deal the steps out in another order
        try:  # the context wants something to cut; nothing else is
            with context_parallel(mesh, buffers=[torch.zeros(line.size, device=device)], buffer_seq_dims=[0]):
                yield
        finally:
            _cp_options.enable_load_balance = balanced

    return where_it_works(ring_attention(spread))


def where_it_works(ring: Ring) -> Ring:
    """PyTorch's needs flash attention; what float32 has instead pads its sums to multiples of 32 steps."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        return ring(q, k, v) if q.dtype in HALVES and q.shape[1] % 32 == 0 else None

    return attend


def ring_attention(spread: Callable[[], Any]) -> Ring:
    """Causal attention of pieces; within ``spread()``, ``scaled_dot_product_attention`` is that of all of them.

    Not run on GPUs yet: tests put a stand-in for ``spread`` that gathers.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeats = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(repeats, 2) if repeats > 1 else x for x in (k, v))
        y: Tensor = _Ring.apply(*(x.transpose(1, 2) for x in (q, k, v)), spread)
        return y.transpose(1, 2)

    return attend


class _Ring(torch.autograd.Function):
    """The backward pass has to run within the context too, which ends with the call: so it begins with the forward
    pass once more."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spread: Callable[[], Any]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.spread = spread
        with spread():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad(), ctx.spread():
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return *torch.autograd.grad(y, (q, k, v), gradient), None
