"""Kernels in Triton: whether one runs, why it does not, and how it is launched.

The kernel of a primitive is ``triton.py`` in its room. That file imports Triton, which is large and seldom there, so it
is imported when the first tensor asks for it. It has

    refusal(*arguments)     why it cannot take these, None if it can
    forward, backward       as ``pytorch.py`` beside it has them
    builds()                what the offline gate compiles (gate.py)
    samples(device)         small cases on which it checks itself before its first use on a device (canary.py)
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import backend

# Capabilities of the NVIDIA cards that have run the tests of all of these kernels as they are, and on which they were
# timed: there tensors go to Triton where nothing was asked for. None yet: an H200 has run the tests of earlier forms
MEASURED: tuple[tuple[int, int], ...] = ()
HOPPER = 9  # the capability of cards whose descriptors feed products of whole warp groups
KERNELS: tuple[str, ...] = (
    "rms_norm",
    "gated_rms_norm",
    "short_convolution",
    "linear_scan",
    "diagonal_scan",
    "selective_scan",
    "ssd",
    "linear_cross_entropy",
    "fft_convolution",
    "vandermonde",
    "cauchy",
    "step",
)


def triton_or(pytorch: Any, kernel: str, *given: Any) -> Any:
    """The module that computes a kernel where C does not: its ``triton.py``, or ``pytorch``.

    Errors:  InputError if Triton was asked for by name and cannot take this input. A kernel that has no ``triton.py``
             runs in PyTorch anyway.
    """
    wanted = backend()
    if wanted in ("c", "torch") or kernel not in KERNELS:
        return pytorch
    tensors = [m for part in given for m in (part if isinstance(part, tuple) else (part,)) if isinstance(m, Tensor)]
    if not asked_on(tensors[0].device):
        return pytorch
    refusal = refusal_of(kernel, tensors, given)
    if refusal is None:
        return module(kernel)
    if wanted == "triton":
        raise InputError(
            f'{kernel}: the Triton kernel was asked for by name, but {refusal}; use "auto" to let PyTorch run it'
        )
    return pytorch


def asked_on(device: torch.device) -> bool:
    """Whether tensors there go to Triton: by name, or where nothing was asked for."""
    wanted = backend()
    return wanted == "triton" or (wanted == "auto" and by_default(device))


def in_force(device: torch.device) -> bool:
    """Whether they do, and can."""
    there = device.type == "cuda" or (device.type == "cpu" and interprets())
    return there and asked_on(device) and why_not() is None


@functools.cache
def by_default(device: torch.device) -> bool:
    """Whether tensors there go to Triton where nothing was asked for."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) in MEASURED


def refusal_of(kernel: str, tensors: Iterable[Tensor], given: Iterable[Any]) -> str | None:
    """Why the Triton kernel cannot take these arguments here; None if it can."""
    reason = why_not()
    if reason is not None:
        return reason
    for m in tensors:
        if m.device.type != "cuda" and not (interprets() and m.device.type == "cpu"):
            return f"a tensor is on {m.device.type}, and the Triton kernels need a GPU"
        if m.dtype == torch.float64 or (m.is_complex() and m.dtype != torch.complex64):
            return f"a tensor is of {m.dtype}, and the Triton kernels compute in float32"
        device = m.device
    found: str | None = module(kernel).refusal(*given)
    if found is None and device.type == "cuda":
        from statewise.kernels.gpu.canary import verdict

        found = verdict(kernel, device)
        if found is not None and backend() == "auto":
            _warn(f"the Triton kernel {kernel} is not used on {device}, PyTorch is: {found}")
    return found


@functools.cache
def _warn(text: str) -> None:
    """Once in a process."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def why_not_by_default(kernel: str) -> str:
    """Why a kernel does not run in Triton where nothing was asked for."""
    instead = "on CUDA the PyTorch path runs"
    if kernel not in KERNELS:
        return f"not written for this kernel; {instead}"
    return f"{why_not() or 'runs by itself on the cards that it was timed on, and on others by name'}; {instead}"


@functools.cache
def why_not() -> str | None:
    """Why there is no Triton here, None if there is."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (PyTorch's own CUDA and ROCm wheels bring it)"
    return None


def interprets() -> bool:
    """Whether Triton runs its kernels on CPU tensors, in Python: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def module(kernel: str) -> Any:
    return importlib.import_module(f"statewise.kernels.{kernel}.triton")


def on_device_of(m: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(m.device) if m.device.type == "cuda" else nullcontext()


def options(device: torch.device, warps: int, registers: int | None = None, stages: int = 1) -> dict[str, int]:
    """The options of a launch, as build.py has them; AMD's compiler knows no limit of registers."""
    found = {"num_warps": warps, "num_stages": stages}
    if registers and device.type == "cuda" and torch.version.hip is None:
        found["maxnreg"] = registers
    return found


@functools.cache
def is_nvidia(device: torch.device, capability: int) -> bool:
    """Whether it is a card of NVIDIA's of this major capability: 8 is Ampere and Ada, 9 Hopper, 10 and 12 Blackwell."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == capability


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << max(0, size - 1).bit_length())


def pieces(device: torch.device, programs: int, blocks: int, least: int) -> int:
    """Into how many pieces a sequence is cut where ``programs``, one a sequence, would leave most of the GPU idle.

    blocks:  that the sequence has, which a program walks through one after the other
    least:   blocks of a piece that are worth its own start
    """
    wanted = _PROGRAMS_EACH * processors(device) // max(1, programs)
    return max(1, min(wanted, blocks // least))


_PROGRAMS_EACH = 2  # that a processor has at one time, for its memory never to wait


@functools.cache
def processors(device: torch.device) -> int:
    """How many the GPU has; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
