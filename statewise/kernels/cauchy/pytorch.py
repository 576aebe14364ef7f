"""The Cauchy sum over conjugate pairs in real arithmetic, in blocks that stay in the cache; and its adjoint.

A pair is one fraction: v/(z - L) + conj(v)/(z - conj(L)) = (alpha z + beta)/d with real alpha = 2 Re v and
beta = -2 Re(v conj(L)), and d = (z - L)(z - conj(L)). So all numerators share 1/d, and the sums over n are real
matrix products. Notation: w width, k numerators, n poles, m nodes; a complex plane is a leading axis of 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Pairs (pole, node) in a block: four planes of two float32 megabytes that are passed over about ten times. Measured:
# with a quarter of that, what PyTorch's threads wait for each other at each call doubles the time.
_BLOCK = 2**19
_ELSEWHERE = 2**24  # on a device that is not a CPU
_LINE = 16  # float32 numbers in a cache line


class Block(NamedTuple):
    """Some channels and some nodes. x, y, ...: (1 or w, 1, m), z = x + i y; p, q: (w, n, 1), Lambda = p + i q."""

    channels: slice
    nodes: slice
    own: slice  # the rows of z for these channels
    n_nodes: int  # as many as are given; m is filled up with copies of the last
    x: Tensor
    y: Tensor
    minus_2y: Tensor
    squared_2y: Tensor
    p: Tensor
    q: Tensor


def forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """v (w, k, n), z (1 or w, m), Lambda (w, n), of one complex dtype -> (w, k, m)."""
    k = v.shape[1]
    out = torch.empty(*v.shape[:2], z.shape[1], dtype=v.dtype, device=v.device)
    if out.numel() == 0 or v.numel() == 0:
        return out.zero_()
    numerators, room = numerators_of(v, Lambda), _Room(v)
    for block in _blocks(z, Lambda):
        x, y, given = block.x, block.y, numerators[block.channels]
        sums = _products(given, _inverse(block, room), room("sums", 2, *given.shape[:2], x.shape[2]))
        sums[1].mul_(block.minus_2y)
        (alpha_re, alpha_im), (re, im) = sums[:, :, :k], sums[:, :, k:]
        re.addcmul_(alpha_re, x).addcmul_(alpha_im, y, value=-1)
        im.addcmul_(alpha_im, x).addcmul_(alpha_re, y)
        torch.complex(re[..., : block.n_nodes], im[..., : block.n_nodes], out=out[block.channels, :, block.nodes])
    return out


def backward(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of v, z (zeros unless ``with_z``) and Lambda, with 1/d computed again.

    With H = conj(grad) the loss moves by Re(H d(out)), so by Re(H z / d) for alpha, Re(H / d) for beta, and by
    E = -sum H (alpha z + beta) / d^2 for d = (z - p)^2 + q^2.
    """
    w, k, n = v.shape
    dz = torch.zeros(z.shape, dtype=z.dtype, device=z.device)
    d_numerators = torch.zeros(w, 2 * k, n, dtype=v.real.dtype, device=v.device)
    moments = torch.zeros(w, n, 2, dtype=v.real.dtype, device=v.device)  # sums over the nodes of Re E and of Re(E z)
    if grad.numel() == 0 or v.numel() == 0:
        return torch.zeros_like(v), dz, torch.zeros_like(Lambda)
    numerators, room = numerators_of(v, Lambda), _Room(v)
    for block in _blocks(z, Lambda):
        channels, x, y = block.channels, block.x, block.y
        inverse = re, im = _inverse(block, room)
        im.mul_(block.minus_2y)
        weight = _weight(grad[channels, :, block.nodes], block, room)
        d_numerators[channels].baddbmm_(weight[0], re.mT)
        d_numerators[channels].baddbmm_(weight[1], im.mT, alpha=-1)

        # -E = weighted numerators / d^2, divided twice
        E_re, minus_E_im = E = room("products", *inverse.shape)
        _products(numerators[channels].mT, weight, E)
        once_re, once_im = room("quotients", *inverse.shape)
        torch.mul(E_re, re, out=once_re).addcmul_(minus_E_im, im, value=-1)
        torch.mul(E_re, im, out=once_im).addcmul_(minus_E_im, re)
        torch.mul(once_im, im, out=E_re).addcmul_(once_re, re, value=-1)
        torch.mul(once_re, im, out=minus_E_im).addcmul_(once_im, re)
        columns = torch.cat([torch.ones_like(x), x, y], 1).mT  # (1 or w, m, 3)
        moments[channels] += torch.matmul(E_re, columns[..., :2])
        moments[channels, :, 1:] += torch.matmul(minus_E_im, columns[..., 2:])

        if with_z:  # z is in d, whose derivative is 2 z - 2 p, and in the numerators
            rows = torch.cat([torch.ones_like(block.p), block.p], 2).mT  # (w, 2, n)
            total, weighted = torch.complex(torch.matmul(rows, E_re), -torch.matmul(rows, minus_E_im)).unbind(1)
            alphas = torch.complex(*torch.matmul(numerators[channels, :k], inverse))
            H = torch.complex(*weight[:, :, k:])
            change = 2 * (total * torch.complex(x, y).squeeze(1) - weighted) + (H * alphas).sum(1)
            change = change if z.shape[0] > 1 else change.sum(0, keepdim=True)
            dz[block.own, block.nodes] += change[:, : block.n_nodes].conj()
    dv, d_Lambda = to_inputs(d_numerators, moments, v, Lambda)
    return dv, dz, d_Lambda


def _weight(grad: Tensor, block: Block, room: _Room) -> Tensor:
    """(2, w, 2 k, m): the real and the imaginary plane of H z, for alpha, and of H, for beta; 0 where m is filled
    up.
    """
    w, k, _ = grad.shape
    weight = room("weight", 2, w, 2 * k, block.x.shape[2])
    weight[..., block.n_nodes :] = 0
    (for_alpha_re, for_alpha_im), (re, im) = weight[:, :, :k], weight[:, :, k:]
    re[..., : block.n_nodes] = grad.real
    torch.neg(grad.imag, out=im[..., : block.n_nodes])
    torch.mul(re, block.x, out=for_alpha_re).addcmul_(im, block.y, value=-1)
    torch.mul(im, block.x, out=for_alpha_im).addcmul_(re, block.y)
    return weight


def to_inputs(d_numerators: Tensor, moments: Tensor, v: Tensor, Lambda: Tensor) -> tuple[Tensor, Tensor]:
    """From alpha = 2 Re v, beta = -2 (Re v p + Im v q) and d = (z - p)^2 + q^2, with Lambda = p + i q."""
    d_alpha, d_beta = d_numerators.chunk(2, 1)  # (w, k, n)
    p, q = Lambda.real, Lambda.imag
    dv = torch.complex(2 * (d_alpha - p.unsqueeze(1) * d_beta), -2 * q.unsqueeze(1) * d_beta)
    through_d = torch.complex(2 * (p * moments[..., 0] - moments[..., 1]), 2 * q * moments[..., 0])
    return dv, through_d - 2 * torch.complex((v.real * d_beta).sum(1), (v.imag * d_beta).sum(1))


def numerators_of(v: Tensor, Lambda: Tensor) -> Tensor:
    """alpha, then beta: (w, 2 k, n)"""
    p, q = Lambda.real.unsqueeze(1), Lambda.imag.unsqueeze(1)
    return torch.cat([2 * v.real, -2 * (v.real * p + v.imag * q)], 1)


def _blocks(z: Tensor, Lambda: Tensor) -> Iterator[Block]:
    """Whole rows of nodes of some channels, or some of the nodes of one channel."""
    (w, n), m = Lambda.shape, z.shape[1]
    limit = _BLOCK if z.device.type == "cpu" else _ELSEWHERE
    pieces = -(-m * n // limit)
    n_nodes = max(min(m, 16), -(-m // pieces))
    n_channels = max(1, limit // (n * n_nodes))
    z = torch.cat([z, z[:, -1:].expand(-1, 2 * _LINE)], 1)
    x, y = (plane.unsqueeze(1).contiguous() for plane in (z.real, z.imag))
    minus_2y, squared_2y = -2 * y, 4 * y * y
    p, q = (plane.unsqueeze(2).contiguous() for plane in (Lambda.real, Lambda.imag))
    for c in range(0, w, n_channels):
        channels = slice(c, min(c + n_channels, w))
        own = channels if z.shape[0] > 1 else slice(0, 1)
        for t in range(0, m, n_nodes):
            nodes = slice(t, min(t + n_nodes, m))
            count = nodes.stop - t
            at = (own, slice(None), slice(t, t + _filled_up(count)))
            yield Block(
                channels, nodes, own, count, x[at], y[at], minus_2y[at], squared_2y[at], p[channels], q[channels]
            )


def _filled_up(count: int) -> int:
    """An odd multiple of a cache line: matrix products are half as fast again as with rows that begin anywhere, and
    a quarter faster than with rows whose distance is a power of two.
    """
    return _LINE * (-(-count // _LINE) | 1)


def _inverse(block: Block, room: _Room) -> Tensor:
    """1/d = 1 / ((z - L)(z - conj(L))): planes (2, w, n, m), the imaginary one still to be multiplied by -2 y.

    Re d = (x - p)^2 - (y - q)(y + q) and Im d = 2 (x - p) y: differences first, then products, so that nothing
    cancels near a pole, as it would in z^2 - 2 p z + |L|^2.
    """
    x, y, p, q = block.x, block.y, block.p, block.q
    shape = (2, *p.shape[:2], x.shape[2])
    inverse, (square, other) = room("inverse", *shape), room("products", *shape)
    re, difference = inverse
    torch.sub(x, p, out=difference)
    torch.mul(difference, difference, out=square)
    torch.sub(y, q, out=re)
    torch.add(y, q, out=other)
    torch.addcmul(square, re, other, value=-1, out=re)
    square.mul_(block.squared_2y).addcmul_(re, re).reciprocal_()  # 1/|d|^2
    inverse.mul_(square)
    return inverse


def _products(factor: Tensor, planes: Tensor, out: Tensor) -> Tensor:
    """One matrix for each channel (w, i, j) by both planes (2, w, j, m) -> out (2, w, i, m)"""
    torch.bmm(factor.repeat(2, 1, 1), planes.flatten(0, 1), out=out.flatten(0, 1))
    return out


class _Room:
    """Memory for the temporaries of a block, which the next block takes again, so that it stays in the cache.

    Fresh memory for each would cost more than the arithmetic: the system gives and takes it back page by page.
    """

    def __init__(self, like: Tensor) -> None:
        self._like, self._kept = like.real, dict[str, Tensor]()

    def __call__(self, name: str, *shape: int) -> Tensor:
        """What it holds is left from before. The first block is the largest."""
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = torch.empty(shape, dtype=self._like.dtype, device=self._like.device)
        return kept if kept.shape == shape else kept.flatten()[: math.prod(shape)].view(shape)
