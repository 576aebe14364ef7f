"""The Cauchy sum over conjugate pairs in Triton, and its adjoint: fractions in registers, sums as matrix products.

A pair is (alpha z + beta) / d with real alpha and beta, as in pytorch.py. A program has HALF numerators, their alphas
in the first rows of its matrices and their betas in the others, and shares 1 / d among them. All that is summed is
linear in the numerators, so that a program needs no others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statewise.kernels.gpu.triton_products import dot


@triton.jit
def sums_over_poles(
    numerators, z, Lambda, y, k, n, m, z_row, blocks,
    PRODUCT: tl.constexpr, HALF: tl.constexpr, NODES: tl.constexpr, POLES: tl.constexpr,
):  # fmt: skip
    """y (w, k, m) in pairs, from numerators (w, 2 k, n), z (m,) or (w, m) with its stride, Lambda (w, n) in pairs."""
    channel = (tl.program_id(0) // blocks).to(tl.int64)
    node = (tl.program_id(0) % blocks).to(tl.int64) * NODES + tl.arange(0, NODES).to(tl.int64)
    own = tl.program_id(1).to(tl.int64) * HALF + tl.arange(0, 2 * HALF).to(tl.int64) % HALF
    is_alpha = (tl.arange(0, 2 * HALF) < HALF)[:, None]
    x, height = load_pairs(z + channel * z_row, node, m)
    sums = tl.zeros((2 * HALF, NODES), tl.float32)
    sums_im = tl.zeros((2 * HALF, NODES), tl.float32)
    for first in range(0, n, POLES):
        pole = first + tl.arange(0, POLES).to(tl.int64)
        given = load_numerators(numerators, channel, own, is_alpha, pole, k, n)
        inverse, inverse_im = inverses(x, height, node, m, Lambda, channel, pole, n)
        sums += dot(given, inverse, PRODUCT)
        sums_im += dot(given, inverse_im, PRODUCT)
    re = tl.where(is_alpha, sums * x[None, :] - sums_im * height[None, :], sums)
    im = tl.where(is_alpha, sums * height[None, :] + sums_im * x[None, :], sums_im)
    re = tl.sum(tl.reshape(re, (2, HALF, NODES)), 0)
    im = tl.sum(tl.reshape(im, (2, HALF, NODES)), 0)
    own = tl.program_id(1).to(tl.int64) * HALF + tl.arange(0, HALF).to(tl.int64)
    at = ((channel * k + own)[:, None] * m + node[None, :]) * 2
    inside = (own < k)[:, None] & (node < m)[None, :]
    tl.store(y + at, re, mask=inside)
    tl.store(y + (at + 1), im, mask=inside)


@triton.jit
def sums_over_nodes(
    grad, numerators, z, Lambda, d_numerators, moments, channels, k, n, m, z_row, blocks,
    PRODUCT: tl.constexpr, HALF: tl.constexpr, NODES: tl.constexpr, POLES: tl.constexpr,
):  # fmt: skip
    """To be summed over pieces of ``blocks`` of NODES: d_numerators (pieces, w, 2 k, n), and over blocks of numerators
    too moments (pieces, blocks of numerators, w, 2, n), the sums of Re E and of Re(E z) that pytorch.py speaks of."""
    of_poles = tl.cdiv(n, POLES)
    channel = (tl.program_id(0) // of_poles).to(tl.int64)
    pole = (tl.program_id(0) % of_poles).to(tl.int64) * POLES + tl.arange(0, POLES).to(tl.int64)
    own = tl.program_id(1).to(tl.int64) * HALF + tl.arange(0, 2 * HALF).to(tl.int64) % HALF
    is_alpha = (tl.arange(0, 2 * HALF) < HALF)[:, None]
    piece = tl.program_id(2).to(tl.int64)
    given = tl.trans(load_numerators(numerators, channel, own, is_alpha, pole, k, n))
    d_given = tl.zeros((2 * HALF, POLES), tl.float32)
    plain = tl.zeros((POLES, NODES), tl.float32)
    by_node = tl.zeros((POLES, NODES), tl.float32)
    for block in range(0, blocks):
        node = (piece * blocks + block) * NODES + tl.arange(0, NODES).to(tl.int64)
        x, height = load_pairs(z + channel * z_row, node, m)
        inverse, inverse_im = inverses(x, height, node, m, Lambda, channel, pole, n)
        weight, weight_im = load_weights(grad, channel, own, is_alpha, node, x, height, k, m)
        d_given += dot(weight, tl.trans(inverse), PRODUCT) - dot(weight_im, tl.trans(inverse_im), PRODUCT)
        re, im = divided_twice(dot(given, weight, PRODUCT), dot(given, weight_im, PRODUCT), inverse, inverse_im)
        plain -= re
        by_node -= re * x[None, :] - im * height[None, :]
    part = tl.where(tl.arange(0, 2 * HALF) < HALF, 0, 1).to(tl.int64)
    at = (((piece * channels + channel) * 2 + part) * k + own)[:, None] * n + pole[None, :]
    tl.store(d_numerators + at, d_given, mask=(own < k)[:, None] & (pole < n)[None, :])
    of_block = piece * tl.num_programs(1) + tl.program_id(1)
    at = (of_block * channels + channel) * 2 * n + pole
    tl.store(moments + at, tl.sum(plain, 1), mask=pole < n)
    tl.store(moments + (at + n), tl.sum(by_node, 1), mask=pole < n)


@triton.jit
def change_of_nodes(
    grad, numerators, z, Lambda, d_z, channels, k, n, m, z_row, blocks,
    PRODUCT: tl.constexpr, HALF: tl.constexpr, NODES: tl.constexpr, POLES: tl.constexpr,
):  # fmt: skip
    """d_z (blocks of numerators, w, m) in pairs, to be summed over these blocks, and over channels that share nodes.

    z is in d, whose derivative is 2 (z - p), and in the numerators.
    """
    channel = (tl.program_id(0) // blocks).to(tl.int64)
    node = (tl.program_id(0) % blocks).to(tl.int64) * NODES + tl.arange(0, NODES).to(tl.int64)
    own = tl.program_id(1).to(tl.int64) * HALF + tl.arange(0, 2 * HALF).to(tl.int64) % HALF
    is_alpha = (tl.arange(0, 2 * HALF) < HALF)[:, None]
    x, height = load_pairs(z + channel * z_row, node, m)
    weight, weight_im = load_weights(grad, channel, own, is_alpha, node, x, height, k, m)
    re = tl.zeros((POLES, NODES), tl.float32)
    im = tl.zeros((POLES, NODES), tl.float32)
    alphas = tl.zeros((2 * HALF, NODES), tl.float32)
    alphas_im = tl.zeros((2 * HALF, NODES), tl.float32)
    for first in range(0, n, POLES):
        pole = first + tl.arange(0, POLES).to(tl.int64)
        given = load_numerators(numerators, channel, own, is_alpha, pole, k, n)
        inverse, inverse_im = inverses(x, height, node, m, Lambda, channel, pole, n)
        by_pole = tl.trans(given)
        E, E_im = divided_twice(dot(by_pole, weight, PRODUCT), dot(by_pole, weight_im, PRODUCT), inverse, inverse_im)
        across = 2.0 * (x[None, :] - tl.load(Lambda + (channel * n + pole) * 2, mask=pole < n, other=0.0)[:, None])
        along = 2.0 * height[None, :]
        re -= E * across - E_im * along
        im -= E * along + E_im * across
        given = tl.where(is_alpha, given, 0.0)
        alphas += dot(given, inverse, PRODUCT)
        alphas_im += dot(given, inverse_im, PRODUCT)
    h, h_im = load_conjugate(grad, channel, own, node, k, m)
    change = tl.sum(re, 0) + tl.sum(h * alphas - h_im * alphas_im, 0)
    change_im = tl.sum(im, 0) + tl.sum(h * alphas_im + h_im * alphas, 0)
    at = ((tl.program_id(1).to(tl.int64) * channels + channel) * m + node) * 2
    tl.store(d_z + at, change, mask=node < m)
    tl.store(d_z + (at + 1), -change_im, mask=node < m)


@triton.jit
def inverses(x, height, node, m, Lambda, channel, pole, n):
    """1 / d (poles, nodes) for d = (z - L)(z - conj(L)), 0 where there is no pole or no node.

    Differences first, then products, so that nothing cancels near a pole.
    """
    p, q = load_pairs(Lambda, channel * n + pole, channel * n + n)
    across = x[None, :] - p[:, None]
    re = across * across - (height[None, :] - q[:, None]) * (height[None, :] + q[:, None])
    im = 2.0 * across * height[None, :]
    inside = (pole < n)[:, None] & (node < m)[None, :]
    scale = tl.where(inside, 1.0 / tl.where(inside, re * re + im * im, 1.0), 0.0)
    return re * scale, -im * scale


@triton.jit
def divided_twice(re, im, inverse, inverse_im):
    """A number divided by d, and again."""
    once = re * inverse - im * inverse_im
    once_im = re * inverse_im + im * inverse
    return once * inverse - once_im * inverse_im, once * inverse_im + once_im * inverse


@triton.jit
def load_pairs(pairs, i, end):
    return tl.load(pairs + i * 2, mask=i < end, other=0.0), tl.load(pairs + (i * 2 + 1), mask=i < end, other=0.0)


@triton.jit
def load_numerators(numerators, channel, own, is_alpha, pole, k, n):
    """(2 HALF, poles): alphas, then betas."""
    row = channel * 2 * k + own[:, None] + tl.where(is_alpha, 0, k)
    return tl.load(numerators + (row * n + pole[None, :]), mask=(own < k)[:, None] & (pole < n)[None, :], other=0.0)


@triton.jit
def load_conjugate(grad, channel, own, node, k, m):
    """H = conj(grad), (2 HALF, nodes), twice over."""
    at = ((channel * k + own)[:, None] * m + node[None, :]) * 2
    inside = (own < k)[:, None] & (node < m)[None, :]
    return tl.load(grad + at, mask=inside, other=0.0), -tl.load(grad + (at + 1), mask=inside, other=0.0)


@triton.jit
def load_weights(grad, channel, own, is_alpha, node, x, height, k, m):
    """(2 HALF, nodes): H z for the alphas, H for the betas."""
    re, im = load_conjugate(grad, channel, own, node, k, m)
    by_node = re * x[None, :] - im * height[None, :]
    by_node_im = re * height[None, :] + im * x[None, :]
    return tl.where(is_alpha, by_node, re), tl.where(is_alpha, by_node_im, im)
