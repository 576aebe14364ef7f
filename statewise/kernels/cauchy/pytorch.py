"""The Cauchy sum over conjugate pairs in real arithmetic, in blocks that stay in the cache; and its adjoint.

A pair is one fraction: v/(z - L) + conj(v)/(z - conj(L)) = (alpha z + beta)/d with real alpha = 2 Re v and
beta = -2 Re(v conj(L)), and d = (z - L)(z - conj(L)). So all numerators share 1/d, and the sums over n are real
matrix products. Notation: w width, k numerators, n poles, m nodes; a complex plane is a leading axis of 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Pairs (pole, node) in a block: four planes of a float32 megabyte that are passed over about ten times. Measured: with
# a quarter of that, what PyTorch spends on each call doubles the time.
_BLOCK = 2**18
_ELSEWHERE = 2**24  # on a device that is not a CPU


class Block(NamedTuple):
    """Some channels and some nodes. x, y: (1 or w, 1, m), z = x + i y; p, q: (w, n, 1), Lambda = p + i q."""

    channels: slice
    nodes: slice
    own: slice  # the rows of z for these channels
    x: Tensor
    y: Tensor
    p: Tensor
    q: Tensor


def forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """v (w, k, n), z (1 or w, m), Lambda (w, n), of one complex dtype -> (w, k, m)."""
    out = torch.empty(*v.shape[:2], z.shape[1], dtype=v.dtype, device=v.device)
    if out.numel() == 0 or v.numel() == 0:
        return out.zero_()
    numerators = _numerators(v, Lambda)
    for block in _blocks(z, Lambda):
        sums_re, sums_im = torch.matmul(numerators[block.channels], _inverse(block))  # (w, 2 k, m)
        alpha, beta = torch.complex(sums_re, sums_im.mul_(-2 * block.y)).chunk(2, 1)
        torch.addcmul(beta, z[block.own, None, block.nodes], alpha, out=out[block.channels, :, block.nodes])
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
    numerators = _numerators(v, Lambda)
    for block in _blocks(z, Lambda):
        channels, x, y = block.channels, block.x, block.y
        inverse = _inverse(block)
        inverse[1].mul_(-2 * y)
        H = grad[channels, :, block.nodes].conj()
        H = torch.cat([H * z[block.own, None, block.nodes], H], 1)  # for alpha and for beta
        weight = torch.stack([H.real, H.imag])  # (2, w, 2 k, m)
        d_numerators[channels].baddbmm_(weight[0], inverse[0].mT)
        d_numerators[channels].baddbmm_(weight[1], inverse[1].mT, alpha=-1)

        # -E = weighted numerators / d^2
        numerator_re, numerator_im = torch.matmul(numerators[channels].mT, weight)  # (w, n, m)
        re, im = inverse
        square_re, square_im = torch.addcmul(re * re, im, im, value=-1), (re * im).mul_(2)
        E_re = (numerator_im * square_im).addcmul_(numerator_re, square_re, value=-1)
        E_im = numerator_im.mul_(square_re).addcmul_(numerator_re, square_im).neg_()
        columns = torch.cat([torch.ones_like(x), x, y], 1).mT  # (1 or w, m, 3)
        sums_re, sums_im = torch.matmul(E_re, columns[..., :2]), torch.matmul(E_im, columns[..., 2:])
        moments[channels] += sums_re
        moments[channels, :, 1:] -= sums_im

        if with_z:  # z is in d, whose derivative is 2 z - 2 p, and in the numerators
            rows = torch.cat([torch.ones_like(block.p), block.p], 2).mT  # (w, 2, n)
            total, weighted = torch.complex(torch.matmul(rows, E_re), torch.matmul(rows, E_im)).unbind(1)
            alphas = torch.complex(*torch.matmul(numerators[channels, :k], inverse))
            change = 2 * (total * z[block.own, block.nodes] - weighted) + (H[:, k:] * alphas).sum(1)
            dz[block.own, block.nodes] += (change if z.shape[0] > 1 else change.sum(0, keepdim=True)).conj()
    dv, d_Lambda = _to_inputs(d_numerators, moments, v, Lambda)
    return dv, dz, d_Lambda


def _to_inputs(d_numerators: Tensor, moments: Tensor, v: Tensor, Lambda: Tensor) -> tuple[Tensor, Tensor]:
    """From alpha = 2 Re v, beta = -2 (Re v p + Im v q) and d = (z - p)^2 + q^2, with Lambda = p + i q."""
    d_alpha, d_beta = d_numerators.chunk(2, 1)  # (w, k, n)
    p, q = Lambda.real, Lambda.imag
    dv = torch.complex(2 * (d_alpha - p.unsqueeze(1) * d_beta), -2 * q.unsqueeze(1) * d_beta)
    through_d = torch.complex(2 * (p * moments[..., 0] - moments[..., 1]), 2 * q * moments[..., 0])
    return dv, through_d - 2 * torch.complex((v.real * d_beta).sum(1), (v.imag * d_beta).sum(1))


def _numerators(v: Tensor, Lambda: Tensor) -> Tensor:
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
    x, y = (plane.unsqueeze(1).contiguous() for plane in (z.real, z.imag))
    p, q = (plane.unsqueeze(2).contiguous() for plane in (Lambda.real, Lambda.imag))
    for c in range(0, w, n_channels):
        channels = slice(c, min(c + n_channels, w))
        own = channels if z.shape[0] > 1 else slice(0, 1)
        for t in range(0, m, n_nodes):
            nodes = slice(t, min(t + n_nodes, m))
            yield Block(channels, nodes, own, x[own, :, nodes], y[own, :, nodes], p[channels], q[channels])


def _inverse(block: Block) -> Tensor:
    """1/d = 1 / ((z - L)(z - conj(L))): planes (2, w, n, m), the imaginary one still to be multiplied by -2 y.

    Re d = (x - p)^2 - (y - q)(y + q) and Im d = 2 (x - p) y: differences first, then products, so that nothing
    cancels near a pole, as it would in z^2 - 2 p z + |L|^2.
    """
    _, _, _, x, y, p, q = block
    inverse = torch.empty(2, *p.shape[:2], x.shape[2], dtype=x.dtype, device=x.device)
    re, im = inverse
    difference = x - p
    torch.mul(difference, difference, out=im)
    torch.sub(y, q, out=re)
    torch.addcmul(im, re, y + q, value=-1, out=re)
    im.mul_(4 * y * y).addcmul_(re, re).reciprocal_()  # 1/|d|^2
    re.mul_(im)
    im.mul_(difference)
    return inverse
