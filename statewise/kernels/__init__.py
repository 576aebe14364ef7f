"""The primitives that know devices. Each folder has a definition, its fast paths, and one registered operator."""

from __future__ import annotations

from typing import NamedTuple

from statewise import native
from statewise.kernels import gpu
from statewise.kernels.backend import backend as _asked_for
from statewise.kernels.backend import use

__all__ = ["KernelStatus", "describe", "use"]


class KernelStatus(NamedTuple):
    """kernel: its name; path: the one that runs; others: why each other path does not."""

    kernel: str
    path: str
    others: dict[str, str]


class _Paths(NamedTuple):
    """How a kernel goes about it in C, and in PyTorch."""

    c: str
    torch: str


_PATHS = {
    "cauchy": _Paths(
        "all numerators of a node at once, nothing stored but the sums",
        "real arithmetic over conjugate pairs, in blocks that stay in the cache",
    ),
    "diagonal_rank_one": _Paths(
        "products over chunks of 64 steps, a triangular system solved by substitution",
        "matrix products over chunks, and a triangular system of each",
    ),
    "diagonal_scan": _Paths("channels in vectors, states in registers, time walked once", "a step at a time"),
    "fft_convolution": _Paths(
        "FFTs with the channels in the lanes of a vector, no transposes",
        "FFTs by overlap-save in blocks of channels, and a written-out adjoint",
    ),
    "gated_rms_norm": _Paths("one pass over each row", "several passes of PyTorch's operations"),
    "gelu_tanh": _Paths("one pass, with the exponential of the vector units", "PyTorch's own"),
    "kalman": _Paths("rows in the lanes of vectors, a written-out adjoint", "a QR decomposition a step for all rows"),
    "linear": _Paths("blocked products at the speed of the vector units", "oneDNN for float32, else PyTorch's choice"),
    "linear_cross_entropy": _Paths(
        "products and the softmax's exponentials over blocks of tokens, no logits kept",
        "the same blocks by PyTorch's operations",
    ),
    "linear_scan": _Paths("states in registers, time walked once", "blocked in about 2 sqrt(length) vectorised steps"),
    "rms_norm": _Paths("one pass over each row", "PyTorch's own"),
    "selective_scan": _Paths(
        "channels in vectors, states in registers, kept at the start of each block of steps",
        "blocks of channels and steps that stay in the cache, and a written-out adjoint",
    ),
    "short_convolution": _Paths("one pass for all taps and the activation", "a multiply-add over the sequence per tap"),
    "ssd": _Paths(
        "products over chunks in registers, decays never stored",
        "matrix products over chunks and a written-out adjoint",
    ),
    "vandermonde": _Paths(
        "powers by recurrence in registers, from anchors in float64",
        "two tables of about sqrt(length) powers and a matrix product",
    ),
}


def describe() -> list[KernelStatus]:
    """Which path of each kernel is in use on this machine, and why the others are not.

    It depends on the installation and on :func:`use`. A kernel still uses PyTorch for an input that its C code does
    not support (another device, another dtype), unless you asked for "c" by name.
    """
    wanted, found = _asked_for(), []
    for name, paths in _PATHS.items():
        triton = gpu.why_not_by_default(name)
        if wanted == "triton" and name in gpu.KERNELS and gpu.why_not() is None:
            path = "Triton: chosen by name"
            others = dict.fromkeys(("C", "PyTorch"), "Triton was chosen by kernels.use or STATEWISE_KERNELS")
        elif wanted in ("torch", "triton") or native.why_not():
            asked = f"{'Triton' if wanted == 'triton' else 'PyTorch'} was chosen by kernels.use or STATEWISE_KERNELS"
            reason = asked if wanted in ("torch", "triton") else native.why_not()
            path = f"PyTorch: {paths.torch}"
            others = {"C": f"{reason}; it would be several times faster", "Triton": triton}
        else:
            path = f"C ({native.instruction_set()}): {paths.c}"
            others = {"PyTorch": "for inputs that C does not support: other devices and dtypes", "Triton": triton}
        found.append(KernelStatus(name, path, others))
    return found
