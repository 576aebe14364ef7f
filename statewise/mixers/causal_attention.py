"""Causal softmax attention over a range of keys that differs from query to query: the definition and a fast form.

Time is counted in the queries' frame: query t of a call has time t, and key j has time j - n_history, so the keys
that came before the call have negative times. Query t sees the keys with

    max(first[t], t - window + 1) <= time <= t,

where ``first`` is the time of the first key of the query's document. Every query sees at least its own key, so no
softmax is ever over nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.attention import Later, attend_exactly
from statewise.operators.folding import is_any

MASK_ELEMENTS = 2**22  # the largest mask made at one time; more queries are taken in parts
SHORT = 64  # up to this many queries of whole rows, plain products cost less than the fused attention on a CPU
SMALLEST_BLOCK = 32  # below this a block of the windowed form costs more to launch than to compute


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    n_history: int = 0,
    first: Tensor | None = None,
    window: int | None = None,
    scale: float | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """The definition, query by query in float64: y_t = sum_s softmax_s(scale q_t . k_s) noise_ts v_s.

    Shapes and meaning as :func:`attend`, with ``n_history`` an integer.
    scale:  None: 1 / sqrt(d_head)
    noise:  (batch, n_heads, length, n_keys), by which dropout multiplies the weights: 0 or 1 / (1 - p)
    Cost:   O(length * n_keys) in a Python loop; for tests and for reading.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; groups: Ainslie et al. 2023, arXiv:2305.13245, sec. 2.2.
    """
    batch, length, n_heads, d_head = q.shape
    n_keys, repeats = k.shape[1], n_heads // k.shape[2]
    q, k, v = q.double(), k.double(), v.double()
    scale = d_head**-0.5 if scale is None else scale
    rows = []
    for b in range(batch):
        for t in range(length):
            low = -n_history if first is None else max(-n_history, int(first.expand(batch, length)[b, t]))
            if window is not None:
                low = max(low, t - window + 1)
            seen = slice(low + n_history, min(t + n_history + 1, n_keys))
            for h in range(n_heads):
                weight = (k[b, seen, h // repeats] @ q[b, t, h] * scale).exp()
                weight = weight / weight.sum()
                rows.append((weight if noise is None else weight * noise[b, h, t, seen]) @ v[b, seen, h // repeats])
    return torch.stack(rows).reshape(batch, length, n_heads, d_head) if rows else torch.zeros_like(q)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    n_history: int | Tensor = 0,
    first: Tensor | None = None,
    window: int | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    later: Later | None = None,
) -> Tensor:
    """Attention of each query to the range of keys named above, through ``scaled_dot_product_attention``.

    Shapes:  q: (batch, length, n_heads, d_head)   k, v: (batch, n_keys, n_kv_heads, d_head)   ->   as q
             n_history: how many keys precede the first query's own; (batch,) where the rows differ
             first: (batch or 1, length) time of the first key a query may see; None where all keys may be seen
             dropout: of the weights, (batch, n_heads, queries, keys) -> the same, after their softmax
             later: in exact mode, what joins the gradients of k and v with those of later calls
    Cost:    O(length * n_keys) time; with a window O(length * window) time and memory. A full range makes no mask,
             and other masks are made for at most ``MASK_ELEMENTS`` pairs at one time. With ``dropout`` all weights are
             computed and kept for the gradients, O(length * n_keys) memory, a window or none.
    """
    length, n_keys = q.shape[1], k.shape[1]
    if is_exact():
        return _attend_exactly(q, k, v, n_history, first, window, dropout, later)
    if is_any(length) or is_any(n_keys):
        return _attend_any(q, k, v, n_history, first, window)
    at_once = isinstance(n_history, int) and first is None and (window is None or n_keys <= window)  # all before it
    if length == 1 and at_once and dropout is None:
        return _decode(q, k, v, None)
    if at_once and n_history == 0:
        short = length <= SHORT and q.device.type == "cpu" and q.shape[2] == k.shape[2]
        if length == n_keys and (short or dropout is not None):
            return _attend_whole(q, k, v, dropout)
        if dropout is None:
            y = F.scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True, enable_gqa=True)
            return y.transpose(1, 2)
    if dropout is not None:
        return _attend_masked(q, k, v, n_history, first, window, dropout)
    if window is not None and isinstance(n_history, int):
        block = max(window, SMALLEST_BLOCK)
        if length > 2 * block:
            return _attend_in_blocks(q, k, v, n_history, first, window, block)
    return _attend_masked(q, k, v, n_history, first, window)


def _attend_exactly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n_history: int | Tensor,
    first: Tensor | None,
    window: int | None,
    dropout: Callable[[Tensor], Tensor] | None,
    later: Later | None,
) -> Tensor:
    if dropout is not None:
        raise InputError("exact mode attends without dropout, whose noise depends on the call; set dropout=0 or eval()")
    time = torch.arange(q.shape[1], device=q.device)[None]
    shift = n_history[:, None] if isinstance(n_history, Tensor) else n_history
    low = _lowest(first, time[0], window)
    high = time + shift + 1
    low = torch.zeros_like(high) if low is None else (low + shift).clamp(min=0)
    return attend_exactly(q, k, v, low, high.clamp(max=k.shape[1]), later)


def _attend_whole(q: Tensor, k: Tensor, v: Tensor, dropout: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Whole rows, all scores at once. Also for several models: vmap has rules for all of it, and none for the fused."""
    length = q.shape[1]
    later = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    return weigh(q, k, v, later, dropout)


def _attend_any(
    q: Tensor, k: Tensor, v: Tensor, n_history: int | Tensor, first: Tensor | None, window: int | None
) -> Tensor:
    """All scores at once with a mask, in a program that is exported for any length."""
    time = torch.arange(q.shape[1], device=q.device)
    shift = n_history[:, None] if isinstance(n_history, Tensor) else n_history
    at = (torch.arange(k.shape[1], device=q.device)[None] - shift)[:, None]  # (rows, 1, n_keys)
    mask = at <= time[:, None]
    low = _lowest(first, time, window)
    if low is not None:
        mask = mask & (at >= low[:, :, None])
    hidden = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    return weigh(q, k, v, hidden[:, None], None)


def weigh(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, dropout: Callable[[Tensor], Tensor] | None) -> Tensor:
    """All weights at once; ``hidden``, added to the scores (batch, n_heads, queries, keys), is -inf for what is not
    seen."""
    repeats = q.shape[2] // k.shape[2]
    q, k, v = heads_first(q, k, v)
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    weights = ((q * q.shape[-1] ** -0.5) @ k.mT + hidden).softmax(-1).to(v.dtype)
    return ((weights if dropout is None else dropout(weights)) @ v).transpose(1, 2)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """One query a row: the heads of a group take the queries' axis, so no key is read twice."""
    batch, _, n_heads, d_head = q.shape
    n_groups = k.shape[2]
    grouped = q.reshape(batch, n_groups, n_heads // n_groups, d_head)
    y = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return y.reshape(batch, 1, n_heads, d_head)


FARTHEST = 2**62  # steps; a window may be any number, a time is one of 64 bits


def _lowest(first: Tensor | None, time: Tensor, window: int | None) -> Tensor | None:
    """The time of the first key that each query sees, (rows, length); None where only causality bounds it."""
    if window is None:
        return first
    recent = (time - (min(window, FARTHEST) - 1))[None]
    return recent if first is None else torch.maximum(first, recent)


def _attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n_history: int | Tensor,
    first: Tensor | None,
    window: int | None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Dense with a mask, for some of the queries at a time where the mask would be large."""
    length, n_keys = q.shape[1], k.shape[1]
    time = torch.arange(length, device=q.device)
    shift = n_history if isinstance(n_history, int) else n_history[:, None]
    key_time = torch.arange(n_keys, device=q.device)[None] - shift  # (rows, n_keys)
    low = _lowest(first, time, window)
    n_rows = max(key_time.shape[0], 1 if low is None else low.shape[0])
    n_at_once = max(1, MASK_ELEMENTS // (n_rows * n_keys))
    outputs = []
    for begin, q_part in zip(range(0, length, n_at_once), q.split(n_at_once, 1)):
        end = min(begin + n_at_once, length)
        n_seen = min(n_history + end, n_keys) if isinstance(n_history, int) else n_keys
        at = key_time[:, None, :n_seen]
        mask = at <= time[begin:end, None]
        if low is not None:
            mask = mask & (at >= low[:, begin:end, None])
        mask = mask[:, None]  # one for all heads
        k_seen, v_seen = k[:, :n_seen], v[:, :n_seen]
        if dropout is not None:
            hidden = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
            outputs.append(weigh(q_part, k_seen, v_seen, hidden, dropout))
            continue
        if length == 1:
            return _decode(q, k_seen, v_seen, mask)
        y = F.scaled_dot_product_attention(*heads_first(q_part, k_seen, v_seen), attn_mask=mask, enable_gqa=True)
        outputs.append(y.transpose(1, 2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, n_history: int, first: Tensor | None, window: int, block: int
) -> Tensor:
    """Windowed: a block of queries sees no further back than the block of keys before its own (block >= window)."""
    batch, length = q.shape[:2]
    n_blocks = -(-length // block)
    pad = n_blocks * block - length
    time = torch.arange(n_blocks * block, device=q.device)
    # Keys that no query can reach are dropped, and zeros take the place of those that never were.
    kept = min(n_history, block)
    if first is None and kept < block:
        first = torch.full_like(time[None], -kept)
    elif first is not None:
        first = F.pad(first, (0, pad))

    def in_pairs(x: Tensor) -> Tensor:
        """Each block with the one before it: (batch, n_blocks, 2 * block, n_kv_heads, d_head)."""
        x = F.pad(x[:, n_history - kept :], (0, 0, 0, 0, block - kept, pad)).unflatten(1, (n_blocks + 1, block))
        return torch.cat((x[:, :-1], x[:, 1:]), dim=2)

    low = _lowest(first, time, window)
    assert low is not None
    low = low.unflatten(1, (n_blocks, block))[..., None]  # (rows, n_blocks, block, 1)
    own_time = time.unflatten(0, (n_blocks, block))
    key_time = torch.cat((own_time - block, own_time), dim=1)[:, None]  # (n_blocks, 1, 2 * block)
    mask = (key_time <= own_time[..., None]) & (key_time >= low)  # (rows, n_blocks, block, 2 * block)
    q = F.pad(q, (0, 0, 0, 0, 0, pad)).unflatten(1, (n_blocks, block))
    k, v = in_pairs(k), in_pairs(v)

    outputs = []
    n_at_once = max(1, MASK_ELEMENTS // (batch * 2 * block * block))  # blocks
    for parts in zip(q.split(n_at_once, 1), k.split(n_at_once, 1), v.split(n_at_once, 1), mask.split(n_at_once, 1)):
        *qkv, part = parts
        part = part.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
        y = F.scaled_dot_product_attention(
            *heads_first(*(x.flatten(0, 1) for x in qkv)), attn_mask=part, enable_gqa=True
        )
        outputs.append(y.transpose(1, 2).unflatten(0, (batch, -1)))
    return torch.cat(outputs, 1).flatten(1, 2)[:, :length]
