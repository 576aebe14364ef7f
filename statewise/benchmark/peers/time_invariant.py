"""Filters and convolutions of S4D and S4 in the plain ways: everything in memory, scipy, two levels in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.benchmark.case import Function
from statewise.benchmark.peers import require


def convolution(u: Tensor, K: Tensor) -> Tensor:
    """The line that everybody writes: zero-pad to twice the length, multiply the spectra of everything."""
    length = u.shape[1]
    spectrum = torch.fft.rfft(u.mT, n=2 * length) * torch.fft.rfft(K, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT.contiguous()


def scipy_convolution() -> Function:
    fft = require("scipy.fft")

    def convolve(u: Tensor, K: Tensor) -> Tensor:
        length = u.shape[1]
        workers, n = torch.get_num_threads(), fft.next_fast_len(2 * length, real=True)
        spectrum = fft.rfft(u.mT.numpy(), n, workers=workers) * fft.rfft(K.numpy(), n, workers=workers)
        return torch.from_numpy(fft.irfft(spectrum, n, workers=workers)[..., :length]).mT.contiguous()

    return convolve


def vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    """All powers of all states in memory, (H, N/2, L) complex, as in minimal S4D."""
    powers = torch.exp(log_A.unsqueeze(-1) * torch.arange(length))
    return 2 * torch.einsum("wn,wnl->wl", c, powers).real


def two_level_vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    """Powers up to sqrt(length) twice and a complex matrix product, differentiated by PyTorch."""
    q = 2 ** ((length - 1).bit_length() // 2)
    small = torch.exp(log_A.unsqueeze(-1) * torch.arange(q))
    big = torch.exp(log_A.unsqueeze(-1) * (q * torch.arange(-(-length // q))))
    return 2 * ((c.unsqueeze(-1) * big).mT @ small).real.flatten(1)[:, :length]


def cauchy(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """Every fraction in memory, as in the first releases of S4."""
    v, Lambda = torch.cat([v, v.conj()], -1), torch.cat([Lambda, Lambda.conj()], -1)
    return (v.unsqueeze(-1) / (z - Lambda[:, None, :, None])).sum(2)
