"""The primitives that know devices. Each folder holds a definition, its fast paths, and one registered operator."""

from __future__ import annotations

from typing import NamedTuple

from statewise.kernels.backend import use

__all__ = ["KernelStatus", "describe", "use"]


class KernelStatus(NamedTuple):
    """kernel: its name; path: what runs; others: why each other path does not."""

    kernel: str
    path: str
    others: dict[str, str]


_PATHS = {
    "cauchy": "PyTorch, real arithmetic over conjugate pairs, in blocks that stay in the cache",
    "fft_convolution": "PyTorch, FFTs by overlap-save in blocks of channels, and a written-out adjoint",
    "linear_scan": "PyTorch, blocked in about 2 sqrt(length) vectorised steps",
    "short_convolution": "PyTorch, one multiply-add over the sequence for each tap",
    "ssd": "PyTorch, matrix products over chunks and a written-out adjoint",
    "vandermonde": "PyTorch, two tables of about sqrt(length) powers and a matrix product",
}


def describe() -> list[KernelStatus]:
    """Which path of each kernel is in use on this machine, and why the others are not."""
    others = {
        "C": "not part of this version; the PyTorch path runs on every device",
        "Triton": "not part of this version; on CUDA the PyTorch path runs",
    }
    return [KernelStatus(name, path, dict(others)) for name, path in _PATHS.items()]
