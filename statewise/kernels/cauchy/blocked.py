"""The Cauchy sum over conjugate pairs in real arithmetic, in blocks that stay in the cache; and its adjoint.

A pair is one fraction: v/(z - L) + conj(v)/(z - conj(L)) = (alpha z + beta)/d with real alpha = 2 Re v and
beta = -2 Re(v conj(L)), and d = (z - L)(z - conj(L)). So all numerators share 1/d, and the sums over n are real
matrix products. Notation: w width, k numerators, n poles, m nodes; a complex plane is a leading axis of 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 2**15  # pairs (pole, node) in a block: each of its few real planes is then 128 KiB of float32
_ELSEWHERE = 2**24  # on a device that is not a CPU


def forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """v (w, k, n), z (1 or w, m), Lambda (w, n), of one complex dtype -> (w, k, m)."""
    (w, k, n), m = v.shape, z.shape[1]
    out = torch.empty(w, k, m, dtype=v.dtype, device=v.device)
    if out.numel() == 0:
        return out
    numerators = _numerators(v, Lambda)  # (w, 2 k, n)
    x, y = _planes(z)
    for channels, nodes in _blocks(w, n, m, v.device):
        here = (channels if z.shape[0] > 1 else slice(None), nodes)
        x_here, y_here = x[here].unsqueeze(1), y[here].unsqueeze(1)  # (1 or w, 1, m)
        inverse = _inverse(x_here, y_here, Lambda[channels])
        sums = torch.matmul(numerators[channels], inverse)  # (2, w, 2 k, m)
        (alpha_re, beta_re), (alpha_im, beta_im) = (plane.chunk(2, 1) for plane in sums)
        out_re, out_im = torch.view_as_real(out[channels, :, nodes]).unbind(-1)
        torch.sub(torch.addcmul(beta_re, x_here, alpha_re), y_here * alpha_im, out=out_re)
        torch.add(torch.addcmul(beta_im, x_here, alpha_im), y_here * alpha_re, out=out_im)
    return out


def backward(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of v, z and Lambda. With H = conj(grad) the loss moves by Re(H d out); 1/d is computed again."""
    (w, k, n), m = v.shape, z.shape[1]
    real = v.real.dtype
    dz = torch.zeros(z.shape, dtype=z.dtype, device=z.device)
    d_numerators = torch.zeros(w, 2 * k, n, dtype=real, device=v.device)
    # sums over the nodes of E, x Re E - y Im E, where E is the gradient of d: from them that of Lambda
    moments = torch.zeros(w, n, 2, dtype=real, device=v.device)
    if grad.numel() == 0:
        return torch.zeros_like(v), dz, torch.zeros_like(Lambda)
    numerators = _numerators(v, Lambda)
    x, y = _planes(z)
    for channels, nodes in _blocks(w, n, m, v.device):
        at = channels if z.shape[0] > 1 else slice(None)
        x_here, y_here = x[at, nodes].unsqueeze(1), y[at, nodes].unsqueeze(1)  # (1 or w, 1, m)
        inverse = _inverse(x_here, y_here, Lambda[channels])  # (2, w, n, m)
        H_re, minus_H_im = _planes(grad[channels, :, nodes])
        weight = torch.empty(2, H_re.shape[0], 2 * k, H_re.shape[2], dtype=real, device=v.device)  # H z, then H
        torch.addcmul(x_here * H_re, y_here, minus_H_im, out=weight[0, :, :k])
        torch.sub(y_here * H_re, x_here * minus_H_im, out=weight[1, :, :k])
        weight[0, :, k:] = H_re
        torch.neg(minus_H_im, out=weight[1, :, k:])

        d_numerators[channels] += torch.matmul(weight[0], inverse[0].mT)
        d_numerators[channels] -= torch.matmul(weight[1], inverse[1].mT)

        # E = -H (alpha z + beta) / d^2
        E = torch.matmul(numerators[channels].mT, weight)  # (2, w, n, m)
        E = _times(_times(E, inverse), inverse).neg_()
        columns = torch.stack([torch.ones_like(x_here), x_here, y_here], -1).squeeze(1)  # (1 or w, m, 3)
        sums = torch.matmul(E, columns)  # (2, w, n, 3)
        moments[channels, :, 0] += sums[0, :, :, 0]
        moments[channels, :, 1] += sums[0, :, :, 1] - sums[1, :, :, 2]

        # z is in d by 2 z - 2 Re(Lambda), and in the numerators
        rows = torch.stack([torch.ones_like(Lambda[channels].real), Lambda[channels].real], 1)  # (w, 2, n)
        total, weighted = torch.matmul(rows, E).unbind(2)  # (2, w, m)
        z_re, z_im = x_here.squeeze(1), y_here.squeeze(1)
        dz_re = 2 * (total[0] * z_re - total[1] * z_im - weighted[0])
        dz_im = 2 * (total[0] * z_im + total[1] * z_re - weighted[1])
        alphas = torch.matmul(numerators[channels, :k], inverse)  # (2, w, k, m)
        dz_re += (H_re * alphas[0] + minus_H_im * alphas[1]).sum(1)
        dz_im += (H_re * alphas[1] - minus_H_im * alphas[0]).sum(1)
        change = torch.complex(dz_re, -dz_im)
        dz[at, nodes] += change if z.shape[0] > 1 else change.sum(0, keepdim=True)
    dv, d_Lambda = _to_inputs(d_numerators, moments, v, Lambda)
    return dv, dz, d_Lambda


def _to_inputs(d_numerators: Tensor, moments: Tensor, v: Tensor, Lambda: Tensor) -> tuple[Tensor, Tensor]:
    """From alpha = 2 Re v, beta = -2 (Re v Re L + Im v Im L) and d = (z - Re L)^2 + (Im L)^2."""
    d_alpha, d_beta = d_numerators.chunk(2, 1)  # (w, k, n)
    p, q = Lambda.real, Lambda.imag
    dv = torch.complex(2 * (d_alpha - p.unsqueeze(1) * d_beta), -2 * q.unsqueeze(1) * d_beta)
    through_d = torch.complex(2 * (p * moments[..., 0] - moments[..., 1]), 2 * q * moments[..., 0])
    return dv, through_d - 2 * torch.complex((v.real * d_beta).sum(1), (v.imag * d_beta).sum(1))


def _blocks(w: int, n: int, m: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Channels and nodes of each block: whole rows of nodes of some channels, or some nodes of one."""
    limit = _BLOCK if device.type == "cpu" else _ELSEWHERE
    pieces = -(-m * n // limit)
    nodes = max(min(m, 16), -(-m // pieces))
    channels = max(1, limit // (n * nodes))
    for c in range(0, w, channels):
        for t in range(0, m, nodes):
            yield slice(c, min(c + channels, w)), slice(t, min(t + nodes, m))


def _planes(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.real.contiguous(), z.imag.contiguous()


def _numerators(v: Tensor, Lambda: Tensor) -> Tensor:
    """alpha, then beta: (w, 2 k, n)"""
    p, q = Lambda.real.unsqueeze(1), Lambda.imag.unsqueeze(1)
    return torch.cat([2 * v.real, -2 * (v.real * p + v.imag * q)], 1)


def _inverse(x: Tensor, y: Tensor, Lambda: Tensor) -> Tensor:
    """1 / ((z - L)(z - conj(L))): planes (2, w, n, m), from z = x + i y of (1 or w, 1, m) and Lambda (w, n).

    Real part (x - Re L)^2 - (y - Im L)(y + Im L) and imaginary part 2 (x - Re L) y: differences first, then
    products, so that nothing cancels near a pole, as it does in z^2 - 2 Re(L) z + |L|^2.
    """
    p, q = Lambda.real.unsqueeze(2).contiguous(), Lambda.imag.unsqueeze(2).contiguous()
    inverse = torch.empty(2, *Lambda.shape, x.shape[2], dtype=x.dtype, device=x.device)
    re, im = inverse.unbind(0)
    torch.sub(x, p, out=im)
    first, second = y - q, y + q
    torch.mul(im, im, out=re)
    re.addcmul_(first, second, value=-1)
    im.mul_(-2 * y)  # that of the conjugate, which is the numerator of the inverse
    torch.mul(re, re, out=first)
    first.addcmul_(im, im).reciprocal_()
    inverse.mul_(first)
    return inverse


def _times(a: Tensor, b: Tensor) -> Tensor:
    """The complex product of planes, into a."""
    re = (a[0] * b[0]).addcmul_(a[1], b[1], value=-1)
    a[1].mul_(b[0]).addcmul_(a[0], b[1])
    a[0] = re
    return a
