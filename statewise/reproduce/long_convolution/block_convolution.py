"""The causal convolution through the block FFT (block_fft.py), and its adjoint, in blocks that stay in the cache.

Everything is a product of real matrices. Time is the first axis of a block, t = n1 + N1 n2, and its columns (rows of
the batch, channels, trailing copies) the last, as the input lies in memory: so x is (n2, n1 columns), the transforms of
N2 points are one product with a matrix from the left, those of N1 points one for each k2, with the twiddles in their
matrices, and nothing is transposed in between. Zeros behind the input and outputs that nobody asks for are rows and
columns of the first and the last matrix that are left out. A block's spectra are multiplied where they are.

Notation: b rows of the batch, w channels, t trailing copies, p outputs of a channel.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.fft_convolution.pytorch import Parts, compute_dtype, known_parts, ranges
from statewise.kernels.linear import linear
from statewise.reproduce.long_convolution.block_fft import counts, dft_matrix, half, twiddles
from statewise.reproduce.long_convolution.block_sizes import BlockSizes, block_sizes


class Tables(NamedTuple):
    """The factors of the transform as real matrices; parts of a complex number are an axis (re, im).

    inner: (k2 part, n2)   outer: (k2, part k1, part n1), with the twiddles   back: (n2, k2 part), inner's inverse
    """

    inner: Tensor
    outer: Tensor
    back: Tensor


def forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """u (b, l, w, t), K (w, p, taps), history (b, taps - 1, w, t) -> y (b, l, w, p, t)."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    y = torch.empty(b, l, w, p, t, dtype=u.dtype, device=u.device)
    if y.numel() == 0:
        return y
    inputs = known_parts(u, history)
    size = block_sizes(b, l, taps, w, t, u.device)
    tables = _tables(size.n1, size.n2, dtype, u.device)
    for group in ranges(0, w, size.group):
        filters = _filters(K[group], tables, size)
        for rows in ranges(0, b, size.rows):
            for start in range(0, l, size.chunk):
                stop = min(start + size.chunk, l)
                first = max(start - taps + 1, inputs[0][0])
                spectrum = _transform(_read(inputs, rows, first, stop, group, size.n1, dtype), tables)
                for j in range(p):
                    found = _inverse(_product(spectrum, filters[j]), tables, start - first, stop - first)
                    y[rows, start:stop, group, j] = found.movedim(1, 0)
    return y


def backward(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, K and history: the products with the conjugate spectra, as in pytorch.py."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    if grad.numel() == 0:
        return torch.zeros_like(u), torch.zeros_like(K), None if history is None else torch.zeros_like(history)
    du, dK = torch.empty(u.shape, dtype=u.dtype, device=u.device), torch.empty(K.shape, dtype=K.dtype, device=K.device)
    dhistory = None if history is None else torch.empty(history.shape, dtype=history.dtype, device=u.device)
    inputs, found_in = known_parts(u, history), known_parts(du, dhistory)
    size = block_sizes(b, l, taps, w, t, u.device)
    tables = _tables(size.n1, size.n2, dtype, u.device)
    for group in ranges(0, w, size.group):
        filters = _filters(K[group], tables, size)
        d_filters: list[Tensor | None] = [None] * p
        for rows in ranges(0, b, size.rows):
            for start in range(inputs[0][0], l, size.chunk):
                stop, reach = min(start + size.chunk, l), min(start + size.chunk + taps - 1, l)
                spectrum = _transform(_read(inputs, rows, start, stop, group, size.n1, dtype), tables)
                total = None
                for j in range(p):
                    after = _read([(0, grad[:, :, :, j])], rows, start, reach, group, size.n1, dtype)
                    d_output = _transform(after, tables)
                    summed = _product(d_output, spectrum, conjugate=True).sum((3, 5), keepdim=True)
                    previous = d_filters[j]
                    d_filters[j] = summed if previous is None else previous.add_(summed)
                    d_input = _product(d_output, filters[j], conjugate=True)
                    total = d_input if total is None else total.add_(d_input)
                assert total is not None
                _write(_inverse(total, tables, 0, stop - start), found_in, rows, start, group)
        for j, d_filter in enumerate(d_filters):
            assert d_filter is not None  # there is a row and a time
            dK[group, j] = _inverse(d_filter, tables, 0, taps)[:, 0, :, 0].mT
    return du, dK, dhistory


def _transform(x: Tensor, tables: Tables) -> Tensor:
    """Real x (n2, n1, b, w, t) -> (k2, part, k1, b, w, t); zeros are left out behind the last n2."""
    n_k2, rows = tables.outer.shape[0], x.shape[0]
    inner = linear(tables.inner[:, :rows], x.flatten(1).mT)  # (k2 part, n1 columns)
    return torch.bmm(tables.outer, inner.view(n_k2, tables.outer.shape[1], -1)).view(n_k2, 2, *x.shape[1:])


def _inverse(spectrum: Tensor, tables: Tables, start: int, stop: int) -> Tensor:
    """The times [start, stop) of the inverse: (stop - start, b, w, t)."""
    n_k2, _, n1, *columns = spectrum.shape
    outer = torch.bmm(tables.outer.mT, spectrum.reshape(n_k2, 2 * n1, -1))
    first, last = start // n1, -(-stop // n1)
    x = linear(tables.back[first:last], outer.view(2 * n_k2, -1).mT)  # (n2, n1 columns)
    return x.view((last - first) * n1, *columns)[start - first * n1 : stop - first * n1]


def _product(a: Tensor, b: Tensor, *, conjugate: bool = False) -> Tensor:
    """a b, or a times the conjugate of b, of spectra whose parts are the axis 1; b may be one column for several."""
    out, sign = torch.empty_like(a), 1 if conjugate else -1
    (a_re, a_im), (b_re, b_im), (re, im) = a.unbind(1), b.unbind(1), out.unbind(1)
    torch.mul(a_re, b_re, out=re)
    re.addcmul_(a_im, b_im, value=sign)
    torch.mul(a_im, b_re, out=im)
    im.addcmul_(a_re, b_im, value=-sign)
    return out


def _filters(K: Tensor, tables: Tables, size: BlockSizes) -> list[Tensor]:
    """(w, p, taps) -> for each output the spectra (k2, part, k1, 1, w, 1)."""
    dtype = tables.inner.dtype
    everything = slice(0, K.shape[0])
    return [
        _transform(_read([(0, K[None, :, j, :, None].transpose(1, 2))], slice(0, 1), 0, K.shape[2], everything, size.n1,
                         dtype), tables)
        for j in range(K.shape[1])
    ]  # fmt: skip


def _read(parts: Parts, rows: slice, start: int, stop: int, group: slice, n1: int, dtype: torch.dtype) -> Tensor:
    """The times [start, stop) of some rows and channels, zero where nothing is known: (n2, n1, b, w, t)."""
    like = parts[0][1]
    n2 = -(-(stop - start) // n1)
    out = torch.empty(
        (n2 * n1, rows.stop - rows.start, group.stop - group.start, like.shape[3]), dtype=dtype, device=like.device
    )
    known = start
    for begins, part in parts:
        t0, t1 = max(start, begins), min(stop, begins + part.shape[1])
        if t0 < t1:
            out[known - start : t0 - start] = 0
            out[t0 - start : t1 - start] = part[rows, t0 - begins : t1 - begins, group].movedim(0, 1)
            known = t1
    out[known - start :] = 0
    return out.unflatten(0, (n2, n1))


def _write(found: Tensor, parts: Parts, rows: slice, start: int, group: slice) -> None:
    """found (time, b, w, t), from the time ``start`` on, into the parts."""
    for begins, part in parts:
        t0, t1 = max(start, begins), min(start + found.shape[0], begins + part.shape[1])
        if t0 < t1:
            part[rows, t0 - begins : t1 - begins, group] = found[t0 - start : t1 - start].movedim(1, 0)


@functools.lru_cache(maxsize=16)
def _tables(n1: int, n2: int, dtype: torch.dtype, device: torch.device) -> Tables:
    """Computed in float64 and rounded once."""
    inner = torch.view_as_real(dft_matrix(n2)[: half(n2)]).movedim(2, 1)  # (k2, part, n2)
    weight = counts(n2, torch.float64)[:, None, None] / (n1 * n2)
    outer = dft_matrix(n1) * twiddles(n1, n2)[: half(n2), None]  # (k2, k1, n1)
    real, imaginary = outer.real, outer.imag
    outer = torch.cat([torch.cat([real, -imaginary], 2), torch.cat([imaginary, real], 2)], 1)
    back = (inner * weight).flatten(0, 1).mT.contiguous()
    return Tables(*(m.to(device, dtype) for m in (inner.flatten(0, 1), outer, back)))
