"""FlashConv: the block FFT against its definition and torch.fft, and the convolution through it."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from statewise.kernels.fft_convolution import block_fft as definition

D = torch.float64
SPLITS = [*product((1, 2, 3, 4, 5, 8, 16), (1, 2, 3, 4, 7, 8, 32)), (64, 512), (33, 100)]


def draw(*shape: int, dtype: torch.dtype = D) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("n1", "n2"), SPLITS)
def test_the_split_is_the_transform(n1: int, n2: int) -> None:
    x = draw(2, n1 * n2)
    scale = 1e-15 * n1 * n2 * max(1, math.log2(n1 * n2))
    want = torch.fft.rfft(x)
    torch.testing.assert_close(definition.block_fft(x, n1, n2), torch.fft.fft(x), atol=scale, rtol=0)
    torch.testing.assert_close(definition.block_rfft(x, n1, n2), want, atol=scale, rtol=0)
    torch.testing.assert_close(definition.block_irfft(want, n1, n2), x, atol=1e-13, rtol=0)
    blocks = definition.real_blocks(x, n1, n2)
    assert blocks.shape == (2, n2 // 2 + 1, n1)  # nothing of the conjugate half
    folded = definition.fold_spectrum(definition.unfold_spectrum(blocks, n1, n2), n1, n2)
    torch.testing.assert_close(folded, blocks, atol=scale, rtol=0)


def test_the_factors_written_out() -> None:
    """F_N = P (I x F_N1) P^T D (I x F_N2) P with every factor as a matrix of its own."""
    n1, n2 = 3, 4
    order = torch.arange(n1 * n2).reshape(n2, n1).T.flatten()  # from time to (n1, n2)
    P = torch.eye(n1 * n2, dtype=torch.complex128)[order]
    D_ = torch.diag(definition.twiddles(n1, n2).T.flatten())  # by (n1, k2)
    inner = torch.kron(torch.eye(n1), definition.dft_matrix(n2))
    outer = torch.kron(torch.eye(n2), definition.dft_matrix(n1))
    swap = torch.eye(n1 * n2, dtype=torch.complex128)[torch.arange(n1 * n2).reshape(n1, n2).T.flatten()]
    back = torch.eye(n1 * n2, dtype=torch.complex128)[torch.arange(n1 * n2).reshape(n2, n1).T.flatten()]
    F = back @ outer @ swap @ D_ @ inner @ P
    torch.testing.assert_close(F, definition.dft_matrix(n1 * n2), atol=1e-14, rtol=0)
