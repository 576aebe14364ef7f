"""The causal convolution by overlap-save, in blocks of channels that stay in the cache; and its adjoint.

Notation: b batch, l length, w channels, p outputs of a channel, t trailing copies, f frequencies. The FFT wants
time contiguous, so a stretch of time of one row of the batch is transposed as a whole, which is the fast case of
PyTorch's copy, and its channels are then padded, transformed, multiplied and transformed back block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from statewise.kernels.fft_convolution.sizes import sizes
from statewise.precision import full_precision

Parts = Sequence[tuple[int, Tensor]]  # tensors (b, time, w, columns), each with the time at which it begins


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    return full_precision(*(m.dtype for m in tensors if m is not None))


def forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """u (b, l, w, t), K (w, p, taps <= l without a history), history (b, taps - 1, w, t) -> y (b, l, w, p, t)."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    y = torch.empty(b, l, w, p, t, dtype=u.dtype, device=u.device)
    if y.numel() == 0:
        return y
    outputs, inputs = [(0, y.view(b, l, w, p * t))], known_parts(u, history)
    size = sizes(b, l, taps, w, p * t, u.device)
    for group in ranges(0, w, size.group):
        filters = _spectra(K[group], size.n, size.block, dtype)
        for rows in ranges(0, b, size.rows):
            for times in ranges(0, l, size.chunk):
                m, first = times.stop - times.start, max(times.start - taps + 1, inputs[0][0])
                past = _read(inputs, rows, first, times.stop, group, dtype)
                found = past.new_empty(*past.shape[:2], p * t, m)
                for block in ranges(0, past.shape[1], size.block):
                    spectrum = _rfft(past[:, block], size.n).unsqueeze(2)  # (b, w, 1, t, f)
                    weight = filters[block].unsqueeze(2)
                    spectrum = spectrum.mul_(weight) if p == 1 else spectrum * weight
                    everything = torch.fft.irfft(spectrum, n=size.n)[..., times.start - first :]
                    found[:, block] = everything[..., :m].flatten(2, 3)
                _write(found, outputs, rows, times.start, group)
    return y


def backward(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, K and history. What an input gives to the outputs after it: a chunk of inputs needs the
    output gradients of its own times and of taps - 1 more, and their spectrum serves both gradients."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    if grad.numel() == 0:
        return torch.zeros_like(u), torch.zeros_like(K), None if history is None else torch.zeros_like(history)
    du, dK = torch.empty(u.shape, dtype=u.dtype, device=u.device), torch.empty(K.shape, dtype=K.dtype, device=K.device)
    dhistory = None if history is None else torch.empty(history.shape, dtype=history.dtype, device=u.device)
    inputs, found_in = known_parts(u, history), known_parts(du, dhistory)
    size = sizes(b, l, taps, w, p * t, u.device)
    for group in ranges(0, w, size.group):
        filters = _spectra(K[group], size.n, size.block, dtype).conj_physical_()
        d_filters = torch.zeros_like(filters)
        for rows in ranges(0, b, size.rows):
            for times in ranges(0 if history is None else 1 - taps, l, size.chunk):
                m = times.stop - times.start
                reach = min(times.stop + taps - 1, l)
                after = _read([(0, grad.flatten(3))], rows, times.start, reach, group, dtype)
                here = _read(inputs, rows, times.start, times.stop, group, dtype)
                found = torch.empty_like(here)
                for block in ranges(0, here.shape[1], size.block):
                    d_spectrum = _rfft(after[:, block], size.n).unflatten(2, (p, t))  # (b, w, p, t, f)
                    spectrum = _rfft(here[:, block], size.n).conj_physical_().unsqueeze(2)
                    product = spectrum.mul_(d_spectrum) if p == 1 else spectrum * d_spectrum
                    alone = product.shape[0] == 1 and t == 1
                    d_filters[block] += product[0, :, :, 0] if alone else product.sum((0, 3))
                    d_spectrum = d_spectrum.mul_(filters[block].unsqueeze(2))
                    d_spectrum = d_spectrum.squeeze(2) if p == 1 else d_spectrum.sum(2)
                    found[:, block] = torch.fft.irfft(d_spectrum, n=size.n)[..., :m]
                _write(found, found_in, rows, times.start, group)
        for block in ranges(0, d_filters.shape[0], size.block):
            place = slice(group.start + block.start, group.start + block.stop)
            dK[place] = torch.fft.irfft(d_filters[block], n=size.n)[..., :taps]
    return du, dK, dhistory


def ranges(start: int, stop: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, stop)) for i in range(start, stop, step))


def known_parts(x: Tensor, history: Tensor | None) -> Parts:
    """What is known of the input, in time: the history ends where x begins."""
    return [(0, x)] if history is None else [(-history.shape[1], history), (0, x)]


def _rfft(x: Tensor, n: int) -> Tensor:
    """The spectrum of x (..., time), zeros behind it up to n. rfft(x, n=n) pads too, but into ever new memory."""
    if x.shape[-1] == n:
        return torch.fft.rfft(x)
    padded = x.new_empty(*x.shape[:-1], n)
    padded[..., : x.shape[-1]] = x
    padded[..., x.shape[-1] :] = 0
    return torch.fft.rfft(padded)


def _spectra(K: Tensor, n: int, block: int, dtype: torch.dtype) -> Tensor:
    """(w, p, taps) -> (w, p, f)"""
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    spectra = torch.empty(*K.shape[:2], n // 2 + 1, dtype=complex_dtype, device=K.device)
    for channels in ranges(0, K.shape[0], block):
        spectra[channels] = _rfft(K[channels].to(dtype), n)
    return spectra


def _read(parts: Parts, rows: slice, start: int, stop: int, group: slice, dtype: torch.dtype) -> Tensor:
    """The times [start, stop) of some rows and channels, zero before the first part: (b, w, columns, time)."""
    like = parts[0][1]
    shape = (rows.stop - rows.start, group.stop - group.start, like.shape[3], stop - start)
    out = torch.empty(shape, dtype=dtype, device=like.device)
    if start < parts[0][0]:
        out[..., : parts[0][0] - start] = 0
    for begins, part in parts:
        t0, t1 = max(start, begins), min(stop, begins + part.shape[1])
        if t0 < t1:
            source = part[rows, t0 - begins : t1 - begins, group]
            if t1 - t0 == stop - start and shape[0] == 1:  # contiguous on both sides: the fast transposed copy
                out.view(-1, stop - start).copy_(source[0].flatten(1).mT)
            else:
                out[..., t0 - start : t1 - start] = source.permute(0, 2, 3, 1)
    return out


def _write(found: Tensor, parts: Parts, rows: slice, start: int, group: slice) -> None:
    """The inverse of _read, into the parts; found (b, w, columns, time) begins at the time ``start``."""
    m = found.shape[-1]
    for begins, part in parts:
        t0, t1 = max(start, begins), min(start + m, begins + part.shape[1])
        if t0 < t1:
            to = part[rows, t0 - begins : t1 - begins, group]
            if t1 - t0 == m and found.shape[0] == 1:
                to[0].view(m, -1).copy_(found.view(-1, m).mT)
            else:
                to.copy_(found[..., t0 - start : t1 - start].permute(0, 3, 1, 2))
