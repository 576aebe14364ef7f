"""State-space duality of others: the paper's listing, batched matrix products, and causal attention beside them.

Layout of our kernel with one group: x (b, l, h, p) already times dt, log_a (b, l, h), B, C (b, l, 1, n), from rest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def segment_sums(log_a: Tensor) -> Tensor:
    """S_ij = sum of log_a over (j, i] for j <= i, and minus infinity above the diagonal."""
    length = log_a.shape[-1]
    spread = log_a.unsqueeze(-1).expand(*log_a.shape, length)
    lower = torch.ones(length, length, dtype=torch.bool, device=log_a.device).tril(-1)
    sums = spread.masked_fill(~lower, 0.0).cumsum(-2)
    return sums.masked_fill(~lower.logical_or(torch.eye(length, dtype=torch.bool)), -torch.inf)


def paper_listing(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The minimal listing of the paper, equation by equation with einsum, chunks of 64.

    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 6 and listing 1.
    """
    heads = x.shape[2]
    B, C = (m.expand(-1, -1, heads, -1) for m in (B, C))
    x, B, C = (m.unflatten(1, (-1, CHUNK)) for m in (x, B, C))
    log_a = log_a.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2)  # (b, h, chunks, q)
    sums = log_a.cumsum(-1)
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, segment_sums(log_a).exp(), x)
    decay = torch.exp(sums[..., -1:] - sums)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = segment_sums(F.pad(sums[..., -1], (1, 0))).exp()
    entering = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    before = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, entering, sums.exp())
    return (inside + before).flatten(1, 2)


def batched_matmul(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The same in batched matrix products that PyTorch hands to its usual library; C B^T once, shared by all heads."""
    b, length, heads, p = x.shape
    x = x.unflatten(1, (-1, CHUNK)).permute(0, 1, 3, 2, 4)  # (b, chunks, h, q, p)
    B, C = (m.unflatten(1, (-1, CHUNK)).transpose(2, 3) for m in (B, C))  # (b, chunks, 1, q, n)
    sums = log_a.unflatten(1, (-1, CHUNK)).transpose(2, 3).cumsum(-1)  # (b, chunks, h, q)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    decay = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(~lower, -torch.inf).exp()
    y = ((C @ B.mT) * decay) @ x
    states = (x * torch.exp(sums[..., -1:] - sums).unsqueeze(-1)).mT @ B  # (b, chunks, h, p, n)
    h = torch.zeros_like(states[:, 0])
    entering = []
    for added, kept in zip(states.unbind(1), sums[..., -1].exp().unbind(1)):
        entering.append(h)
        h = kept[..., None, None] * h + added
    y = y + (C @ torch.stack(entering, 1).mT) * sums.exp().unsqueeze(-1)
    return y.transpose(2, 3).reshape(b, length, heads, p)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of as many heads: (b, h, l, p) each."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
