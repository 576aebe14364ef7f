"""The linear recurrence in about 2 sqrt(length) vectorised steps, for any device that PyTorch knows."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def forward(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """All blocks of about sqrt(length) steps at once from rest, then the carry from block to block.

    The work is twice the recurrence's, but in O(sqrt(length)) calls instead of O(length). Nothing is divided
    and no logarithm is taken, so a may be zero, negative or complex. Not differentiable: writes in place.
    """
    length = b.shape[1]
    h = torch.empty(b.shape, dtype=b.dtype, device=b.device)  # contiguous, whatever the strides of b
    size = math.isqrt(length)
    n_blocks = length // size if size else 0
    main = n_blocks * size
    state = h0
    if n_blocks > 1:
        a_main = a[:, :main].unflatten(1, (n_blocks, size))
        b_main = b[:, :main].unflatten(1, (n_blocks, size))
        h_main = h[:, :main].unflatten(1, (n_blocks, size))
        decay = torch.empty_like(h_main)  # product of a from the block's start to here
        h_main[:, :, 0] = b_main[:, :, 0]
        decay[:, :, 0] = a_main[:, :, 0]
        for t in range(1, size):
            torch.addcmul(b_main[:, :, t], a_main[:, :, t], h_main[:, :, t - 1], out=h_main[:, :, t])
            torch.mul(a_main[:, :, t], decay[:, :, t - 1], out=decay[:, :, t])
        carries = torch.empty_like(h_main[:, :, 0])
        for k in range(n_blocks):
            carries[:, k] = state
            state = torch.addcmul(h_main[:, k, -1], decay[:, k, -1], state)
        h_main.addcmul_(decay, carries.unsqueeze(2))
    else:
        main = 0
    for t in range(main, length):
        state = torch.addcmul(b[:, t], a[:, t], state, out=h[:, t])
    return h


def backward(grad: Tensor, a: Tensor, h: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and h0 for one of h."""
    if h.shape[1] == 0:
        return torch.zeros_like(h), torch.zeros_like(h), torch.zeros_like(h0)
    a = a.conj()
    a_next = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
    g = forward(a_next.flip(1), grad.flip(1), torch.zeros_like(h0)).flip(1)
    return g * before(h, h0).conj(), g, a[:, 0] * g[:, 0]


def before(h: Tensor, h0: Tensor) -> Tensor:
    """The states before the steps, of those after them."""
    return torch.cat([h0.unsqueeze(1), h], 1)[:, :-1]
