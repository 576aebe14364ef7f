"""Softmax attention to what comes before and after: to all keys of a document, of the queries' own sequence or another.

Query t sees the keys of its document that are real and, with a window, fewer than ``window`` steps away on either side.
A query that sees no key gives 0, the sum over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.attention import attend_exactly
from statewise.mixers.causal_attention import MASK_ELEMENTS, SHORT, SMALLEST_BLOCK, heads_first, weigh
from statewise.operators.folding import is_any


class Seen(NamedTuple):
    """What the queries of a call may look at; every field is None where nothing bounds it.

    valid:     (batch, n_keys) bool, which keys are real
    documents: (batch, length) and (batch, n_keys) integers: a query sees the keys that have its own
    window:    a query at time t sees the keys at the times s with |t - s| < window
    """

    valid: Tensor | None = None
    documents: tuple[Tensor, Tensor] | None = None
    window: int | None = None


ALL = Seen()


def full_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, seen: Seen = ALL, *, noise: Tensor | None = None
) -> Tensor:
    """The definition, query by query in float64: y_t = sum_s softmax_s(q_t . k_s / sqrt(d_head)) noise_ts v_s.

    Shapes and meaning as :func:`attend_fully`.
    noise:  (batch, n_heads, length, n_keys), by which dropout multiplies the weights: 0 or 1 / (1 - p)
    Cost:   O(length * n_keys) in a Python loop; for tests and for reading.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1 and sec. 3.2.3.
    """
    batch, length, n_heads, d_head = q.shape
    n_keys, repeats = k.shape[1], n_heads // k.shape[2]
    q, k, v = q.double(), k.double(), v.double()
    rows = []
    for b in range(batch):
        for t in range(length):
            places = [
                s
                for s in range(n_keys)
                if (seen.valid is None or seen.valid[b, s])
                and (seen.documents is None or seen.documents[0][b, t] == seen.documents[1][b, s])
                and (seen.window is None or abs(t - s) < seen.window)
            ]
            for h in range(n_heads):
                weight = (k[b, places, h // repeats] @ q[b, t, h] * d_head**-0.5).exp()
                weight = weight / weight.sum()
                rows.append((weight if noise is None else weight * noise[b, h, t, places]) @ v[b, places, h // repeats])
    return torch.stack(rows).reshape(batch, length, n_heads, d_head) if rows else torch.zeros_like(q)


def attend_fully(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Seen = ALL,
    *,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attention of each query to all keys that it sees, through ``scaled_dot_product_attention``.

    Shapes:  q: (batch, length, n_heads, d_head)   k, v: (batch, n_keys, n_kv_heads, d_head)   ->   as q
             dropout: of the weights, (batch, n_heads, queries, keys) -> the same, after their softmax
    Cost:    O(length * n_keys) time; with a window O(length * window). Masks are made for at most ``MASK_ELEMENTS``
             pairs at one time, and none where all is seen. With ``dropout`` all weights are computed and kept for the
             gradients.
    """
    length, n_keys = q.shape[1], k.shape[1]
    if not is_any(length) and not is_any(n_keys) and 0 in (length, n_keys):
        return q.new_zeros(q.shape)
    if seen.window is not None and not is_any(n_keys) and seen.window >= max(length, n_keys):
        seen = seen._replace(window=None)
    if is_exact():
        return _attend_exactly(q, k, v, seen, dropout)
    outputs = [_attend_part(q, k, v, seen, dropout, *part) for part in _parts(length, n_keys, seen)]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _attend_exactly(q: Tensor, k: Tensor, v: Tensor, seen: Seen, dropout: Callable[[Tensor], Tensor] | None) -> Tensor:
    """What a query sees is one range of keys, the real ones of a document or of a row, within the window."""
    if dropout is not None:
        raise InputError("exact mode attends without dropout, whose noise depends on the call; set dropout=0 or eval()")
    length, n_keys = q.shape[1], k.shape[1]
    mask = _mask(q.device, seen, 0, length, 0, n_keys)
    if mask is None:
        low = torch.zeros(1, length, dtype=torch.int64)
        return attend_exactly(q, k, v, low, low + n_keys)
    sees = mask[:, 0]
    low = sees.int().argmax(-1)
    return attend_exactly(q, k, v, low, low + sees.sum(-1))


def _parts(length: int, n_keys: int, seen: Seen) -> Iterator[tuple[int, int, int, int]]:
    """Which queries are taken at one time, and which keys any of them may see: (begin, end, low, high)."""
    if is_any(length) or is_any(n_keys) or (seen.documents is None and seen.window is None):
        yield 0, length, 0, n_keys  # a mask of the keys alone is one row for all queries
        return
    at_once = length if seen.window is None else max(seen.window, SMALLEST_BLOCK)
    n_seen = n_keys if seen.window is None else min(n_keys, at_once + 2 * seen.window)
    rows = max(1 if seen.valid is None else len(seen.valid), 1 if seen.documents is None else len(seen.documents[0]))
    at_once = min(at_once, max(1, MASK_ELEMENTS // (rows * n_seen)))
    for begin in range(0, length, at_once):
        end = min(begin + at_once, length)
        if seen.window is None:
            yield begin, end, 0, n_keys
        else:
            yield begin, end, max(0, begin - seen.window + 1), min(n_keys, end + seen.window - 1)


def _attend_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Seen,
    dropout: Callable[[Tensor], Tensor] | None,
    begin: int,
    end: int,
    low: int,
    high: int,
) -> Tensor:
    q, k, v = q[:, begin:end], k[:, low:high], v[:, low:high]
    mask = _mask(q.device, seen, begin, end, low, high)
    some = None
    if mask is not None and (seen.valid is not None or seen.documents is not None):
        some = mask.any(-1, keepdim=True)  # (rows, 1, queries or 1, 1)
        mask = mask | ~some  # no softmax is over nothing: what it then gives is replaced by 0
    exported = is_any(q.shape[1]) or is_any(k.shape[1])
    plain = q.device.type == "cpu" and q.shape[2] == k.shape[2] and not exported and q.shape[1] <= SHORT
    if dropout is not None or exported or plain:  # vmap has rules for all of it, and none for the fused
        hidden = (
            q.new_zeros(()) if mask is None else torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
        )
        y = weigh(q, k, v, hidden, dropout)
    else:
        y = F.scaled_dot_product_attention(*heads_first(q, k, v), attn_mask=mask, enable_gqa=True).transpose(1, 2)
    return y if some is None else y.masked_fill(~some.transpose(1, 2), 0.0)


def _mask(device: torch.device, seen: Seen, begin: int, end: int, low: int, high: int) -> Tensor | None:
    """(rows or 1, 1, queries or 1, keys), True where a query sees a key; None where all see all."""
    masks = []
    if seen.valid is not None:
        masks.append(seen.valid[:, None, low:high])
    if seen.documents is not None:
        own, theirs = seen.documents
        masks.append(own[:, begin:end, None] == theirs[:, None, low:high])
    if seen.window is not None:
        distance = torch.arange(begin, end, device=device)[:, None] - torch.arange(low, high, device=device)
        masks.append((distance.abs() < seen.window)[None])
    if not masks:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = mask & other
    return mask[:, None]
