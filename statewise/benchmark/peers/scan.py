"""Selective scans of others: the paper's loop, chunks in plain PyTorch, mambapy's parallel scan.

All have the layout of our kernel with one group: u, dt, gate (b, l, d), A (d, n), B, C (b, l, 1, n), D (d,), and give
y = (C h + D u) SiLU(gate) with h_t = exp(Delta A) h + Delta B u and Delta = softplus(dt), from rest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.benchmark.case import Function
from statewise.benchmark.peers import require

CHUNK = 64


def discretised(u: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """exp(Delta A) and Delta B u, each (b, l, d, n): what all of them put into memory."""
    delta = F.softplus(dt)
    return torch.exp(delta.unsqueeze(-1) * A), (delta * u).unsqueeze(-1) * B


def paper_loop(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor) -> Tensor:
    """The reference that Mamba's authors publish, selective_scan_ref: a loop over time steps, indexing as it goes.

    Source:  Gu & Dao 2023, arXiv:2312.00752, algorithm 2.
    """
    decay, added = discretised(u, dt, A, B)
    h = torch.zeros_like(added[:, 0])
    rows = []
    for t in range(u.shape[1]):
        h = decay[:, t] * h + added[:, t]
        rows.append(torch.einsum("bdn,bn->bd", h, C[:, t, 0]))
    return (torch.stack(rows, 1) + D * u) * F.silu(gate)


def chunked(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor) -> Tensor:
    """Eager PyTorch as good as it gets without a kernel: a loop over the steps of all chunks side by side, twice.

    The first finds what each chunk adds to the state, then one over the chunks carries the state on, and the second,
    from the right states, gives y. ``unbind``, not indexing, keeps the backward pass linear.
    """
    length = u.shape[1]
    rest = -length % CHUNK
    decay, added = discretised(u, dt, A, B)
    readout, delta = C, F.softplus(dt)
    if rest:
        decay, added, readout = (F.pad(m, (0, 0, 0, 0, 0, rest)) for m in (decay, added, readout))
        delta = F.pad(delta, (0, 0, 0, rest))
    decays, inputs, readouts = (m.unflatten(1, (-1, CHUNK)).unbind(2) for m in (decay, added, readout))
    h = torch.zeros_like(inputs[0])
    for a, x in zip(decays, inputs):
        h = torch.addcmul(x, a, h)
    product = torch.exp(delta.unflatten(1, (-1, CHUNK)).sum(2).unsqueeze(-1) * A)
    entering = [torch.zeros_like(h[:, 0])]
    for a, x in zip(product.unbind(1), h.unbind(1)):
        entering.append(torch.addcmul(x, a, entering[-1]))
    h = torch.stack(entering[:-1], 1)
    rows = []
    for a, x, c in zip(decays, inputs, readouts):
        h = torch.addcmul(x, a, h)
        rows.append((h @ c.mT).squeeze(-1))
    y = torch.stack(rows, 2).flatten(1, 2)[:, :length]
    return (y + D * u) * F.silu(gate)


def mambapy() -> Function:
    """mambapy's Blelloch scan as its MambaBlock uses it."""
    pscan = require("mambapy.pscan").pscan

    def scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor) -> Tensor:
        states = pscan(*discretised(u, dt, A, B))
        return ((states @ C.mT).squeeze(-1) + D * u) * F.silu(gate)

    return scan
