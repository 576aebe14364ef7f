"""FlashConv: two more forms of a long convolution, beside the one that runs.

No rule picks them: from rest a filter of all taps and one FFT cost less than the states in between, and the block FFT
has several times the operations of an FFT, for matrix units, of which a CPU has none for float32. ``statewise reproduce
flashconv`` measures them.
"""

from __future__ import annotations

from torch import Tensor

from statewise.kernels.backend import refusal_of
from statewise.kernels.fft_convolution import convolve, register_convolution
from statewise.reproduce.long_convolution import block_convolution

__all__ = ["block_fft_convolution"]

_operator = register_convolution("block_fft_convolution", None, block_convolution, refusal_of)


def block_fft_convolution(u: Tensor, impulse_response: Tensor, history: Tensor | None = None) -> Tensor:
    """The convolution by FFT, split into two dimensions, its small transforms as matrix products.

    Shapes, Errors: as :func:`statewise.kernels.fft_convolution.fft_convolution`.
    Cost:     O(sqrt(taps)) for each step and channel: more operations than an FFT has, in matrix products of at most
              128 rows, which a device may be that much faster at. On a CPU it is not: see docs/reproduce.md. The
              spectra of a block of channels are multiplied in the cache and never kept; beside that the matrices are,
              4 to 8 numbers for each point of the transform and each of its N1 <= 64.
    Numerics: as there, and at most about 2e-6 (float32) or 4e-15 (float64) of sum_i |K_i| max|u|.
    Source:   Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.1 (FlashConv); the definition of the transform is in
              statewise/reproduce/long_convolution/block_fft.py.

    >>> import torch
    >>> block_fft_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]])).flatten().round(decimals=4)
    tensor([ 1., 11., 11.])
    """
    return convolve("block_fft_convolution", _operator, u, impulse_response, history)
