"""The PyTorch path: chunks of matrix products in operations that PyTorch differentiates, so it is its own adjoint.

Notation: b batch, c chunks, h heads, t and s steps of a chunk, p width of a value, n of a key. P(s, t] is the diagonal
of the decays of the steps s + 1 to t, and d_t the number that step t erases or adds along the key it erases by:

    d_t = v_t - S_{t-1} read_t                 (erase = k: the delta rule; otherwise d_t = -S_{t-1} read_t)
    S_t = P(0, t] S_0 + sum over s <= t of d_s (erase_s P(s, t])^T

Put into each other, (1 + A) d = v - S_0 (P read) with A_ts = read_t P(s, t-1] erase_s below the diagonal: a triangular
system for each chunk, which does not depend on S_0 but through its right side. This is the WY form.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.adjoint import gradients_inside
from statewise.kernels.diagonal_rank_one.reference import Arguments


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step."""
    return by_chunks(given)


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> list[Tensor | None]:
    """Gradients of v, q, k, log_a, S0, read, erase and beta; None where there was none."""
    return gradients_inside(lambda *m: by_chunks(Arguments(*m)), given, (grad_y, grad_state))[:8]


def by_chunks(given: Arguments) -> tuple[Tensor, Tensor]:
    """The same map by chunks: all full ones together, then the ragged rest as a chunk of its own."""
    given = given.general()
    v, S, length, size = given.v, given.S0, given.v.shape[1], given.chunk_length
    full = length - length % size
    pieces = [(0, full, size)] if full else []
    pieces += [(full, length, length - full)] if full < length else []
    outputs = []
    for start, stop, steps in pieces:
        assert given.read is not None
        along = (v, given.q, given.k, given.read, given.log_a)
        erase = None if given.erase is None else _in_chunks(given.erase[:, start:stop], steps)
        v_c, q_c, k_c, read_c, log_a_c = (_in_chunks(m[:, start:stop], steps) for m in along)
        y, S = _equal_chunks(v_c, q_c, k_c, read_c, log_a_c, erase, S)
        outputs.append(y)
    return (torch.cat(outputs, 1) if outputs else v.clone()), S


class _Products(NamedTuple):
    """What the steps of a chunk have to do with each other along one kind of key, and with the end of the chunk."""

    read: Tensor  # (b, c, h, t, s)   read_t P(s, t-1] key_s below the diagonal
    query: Tensor  # (b, c, h, t, s)  q_t P(s, t] key_s up to the diagonal
    to_end: Tensor  # (b, c, h, s, n) P(s, end] key_s


def _equal_chunks(
    v: Tensor, q: Tensor, k: Tensor, read: Tensor, log_a: Tensor, erase: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """y (b, length, h, p) and the state after the last chunk, of inputs (b, c, h, t, ...)."""
    added = _products(q, k, read, log_a)
    erased = added if erase is None else _products(q, erase, read, log_a)
    from_start = _sums_up_to(log_a).exp()
    entering, seen, across = read * from_start[..., :-1, :], q * from_start[..., 1:, :], from_start[..., -1, :]
    right = v if erase is None else -(added.read @ v)
    # both right sides at once: d = base - through S_0^T
    solved = torch.linalg.solve_triangular(
        erased.read, torch.cat([right, entering], -1), upper=False, unitriangular=True
    )
    base, through = solved.split([v.shape[-1], read.shape[-1]], -1)
    written = None if erase is None else added.to_end.mT @ v  # (b, c, h, n, p)
    outputs = []
    state = S.mT  # (b, h, n, p)
    for c in range(v.shape[1]):
        d = base[:, c] - through[:, c] @ state
        outputs.append(seen[:, c] @ state + erased.query[:, c] @ d)
        state = across[:, c].unsqueeze(-1) * state + erased.to_end[:, c].mT @ d
        if written is not None:
            state = state + written[:, c]
    y = torch.stack(outputs, 1)
    if erase is not None:
        y = y + added.query @ v
    return y.transpose(2, 3).flatten(1, 2), state.mT


def _products(q: Tensor, key: Tensor, read: Tensor, log_a: Tensor) -> _Products:
    """Halves of halves: between the two halves of a block every pair of steps crosses the middle, so that the decay is
    that from s to the middle times that from the middle to t. Each is the exponential of a sum of what lies between,
    never of a difference, and no decay is divided by.
    """
    steps = key.shape[-2]
    size = 1 << max(steps - 1, 0).bit_length()  # a power of two
    q, keys, read, logs = (_pad(m, size) for m in (q, key, read, log_a))
    Q = (q * keys).sum(-1)[..., None, None]  # blocks of one step: (b, c, h, blocks, 1, 1)
    A = torch.zeros_like(Q)
    half = 1
    while half < size:
        (key_early, _), (_, read_late), (_, q_late) = (_halves(m, half) for m in (keys, read, q))
        early, late = _halves(logs, half)
        to_middle = (key_early * _sums_after(early).exp()).mT
        from_middle = _sums_up_to(late).exp()
        A = _joined(A, (read_late * from_middle[..., :-1, :]) @ to_middle)
        Q = _joined(Q, (q_late * from_middle[..., 1:, :]) @ to_middle)
        half *= 2
    A, Q = (m.squeeze(-3)[..., :steps, :steps] for m in (A, Q))
    return _Products(A, Q, key * _sums_after(log_a).exp())


def _pad(m: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(m, (0, 0, 0, size - m.shape[-2]))


def _halves(m: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """(..., steps, n) -> the first and the second halves of its blocks of 2 half, (..., blocks, half, n) each."""
    early, late = m.unflatten(-2, (-1, 2, half)).unbind(-3)
    return early, late


def _joined(blocks: Tensor, below: Tensor) -> Tensor:
    """Two blocks on the diagonal (..., 2 m, x, x), and one below them (..., m, x, x) -> (..., m, 2 x, 2 x)"""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    upper = torch.cat([first, torch.zeros_like(below)], -1)
    return torch.cat([upper, torch.cat([below, second], -1)], -2)


def _sums_up_to(log_a: Tensor) -> Tensor:
    """(..., steps, n) -> (..., steps + 1, n): the sum of the first t of them."""
    return torch.nn.functional.pad(log_a.cumsum(-2), (0, 0, 1, 0))


def _sums_after(log_a: Tensor) -> Tensor:
    """(..., steps, n): the sum of those behind s."""
    behind = torch.nn.functional.pad(log_a[..., 1:, :], (0, 0, 0, 1))
    return behind.flip(-2).cumsum(-2).flip(-2)


def _in_chunks(m: Tensor, steps: int) -> Tensor:
    """(b, length, h, n) -> (b, c, h, steps, n)"""
    return m.unflatten(1, (-1, steps)).transpose(2, 3)
