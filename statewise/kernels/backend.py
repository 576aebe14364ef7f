"""Which implementation of a kernel runs: C if it can, otherwise PyTorch, or the one that you ask for by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from statewise import native
from statewise.errors import ConfigError, InputError

BACKENDS = ("auto", "c", "triton", "torch")
_chosen: str | None = None


def backend() -> str:
    """What was asked for: by :func:`use`, else by the variable STATEWISE_KERNELS, else "auto"."""
    if _chosen is not None:
        return _chosen
    wanted = os.environ.get("STATEWISE_KERNELS") or "auto"
    if wanted not in BACKENDS:
        raise ConfigError(f"STATEWISE_KERNELS={wanted!r} is unknown; use one of {', '.join(BACKENDS)}")
    return wanted


@contextmanager
def use(name: str) -> Iterator[None]:
    """Inside it, in the whole process, every kernel runs in C ("c"), in Triton ("triton", the kernels that have it), in
    PyTorch ("torch"), or where it is fastest ("auto": in C if the library is available and supports the input).

    Errors:  InputError for another name; later, with "c" or "triton", from a kernel that does not support its input.
    """
    global _chosen
    if name not in BACKENDS:
        raise InputError(f"kernels.use({name!r}) is unknown; use one of {', '.join(BACKENDS)}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def c_runs(kernel: str, refusal: str | None) -> bool:
    """Whether the C code of a kernel runs now. ``refusal``: why it cannot take this input, None if it can.

    Errors:  InputError if C was asked for by name and cannot run.
    """
    wanted = backend()
    if wanted in ("torch", "triton"):
        return False
    if refusal is None and not native.available():
        refusal = f"the C kernels are not available: {native.why_not()}"
    if refusal is not None and wanted == "c":
        raise InputError(
            f'{kernel}: the C kernel was asked for by name, but {refusal}; use "auto" to let PyTorch run it'
        )
    return refusal is None


def c_would_run(refusal: str | None) -> bool:
    """The same, for a caller that has another way than the kernel's PyTorch path: never an error."""
    return refusal is None and backend() in ("auto", "c") and native.available()


def triton_is_asked_for() -> bool:
    return backend() == "triton"


def reads_narrow(device: torch.device) -> bool:
    """Whether kernels read bfloat16 and float16 as they are stored, and widen them themselves: a GPU waits for its
    memory. On a CPU what is narrow is widened before."""
    return device.type == "cuda" or triton_is_asked_for()


# For torch.compile, which cannot look for a library (see precision.py): what is compiled keeps to that moment's path
c_would_run._dynamo_marked_constant = True  # type: ignore[attr-defined]
triton_is_asked_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refusal_of(**tensors: Tensor | None) -> str | None:
    """Why C cannot take these tensors at all: not on the CPU, or no plain memory. None if it can."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device.type != "cpu":
            return f"{name} is on {tensor.device.type}, and the C kernels need the CPU"
    return None
