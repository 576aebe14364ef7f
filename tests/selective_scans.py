"""Cases of the selective scan, and the paths that compute it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from statewise import kernels, native
from statewise.kernels.selective_scan import (
    pytorch_blocks,
)

D = torch.float64


LAUNCHED = "torch, every call a launch"  # as off the CPU: many chunks of time at once


PATHS = ["torch", LAUNCHED, *native.instruction_sets()]


@contextlib.contextmanager
def on(path: str) -> Iterator[None]:
    if path == LAUNCHED:
        way: Any = mock.patch.object(pytorch_blocks, "is_launched", return_value=True)
    else:
        way = contextlib.nullcontext() if path == "torch" else native.forced(path)
    with kernels.use("torch" if path in ("torch", LAUNCHED) else "c"), way:
        yield


def case(
    b: int, length: int, d: int, n: int, g: int, *, is_complex: bool = False, options: bool = True, dtype: Any = D
) -> dict[str, Any]:
    torch.manual_seed(0)
    kind = {D: torch.complex128, torch.float32: torch.complex64}[dtype] if is_complex else dtype
    A = -torch.rand(d, n, dtype=dtype) - 0.01
    inputs = {
        "u": torch.randn(b, length, d, dtype=dtype),
        "dt": torch.randn(b, length, d, dtype=dtype),
        "A": torch.complex(A, 3 * torch.randn(d, n, dtype=dtype)) if is_complex else A,
        "B": torch.randn(b, length, g, n, dtype=kind),
        "C": torch.randn(b, length, g, n, dtype=kind),
        "h0": torch.randn(b, d, n, *((2,) if is_complex else ()), dtype=dtype),
    }
    if options:
        inputs |= {
            "D": torch.randn(d, dtype=dtype),
            "gate": torch.randn(b, length, d, dtype=dtype),
            "dt_bias": torch.randn(d, dtype=dtype),
        }
    return {name: m.requires_grad_() for name, m in inputs.items()}


def ids(b: int, length: int, often: float = 0.15) -> Tensor:
    return (torch.rand(b, length, generator=torch.Generator().manual_seed(1)) < often).cumsum(1)


def everything(run: Any, inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """y, the state and all gradients of a fixed combination of both."""
    y, state = run(**inputs, **options)
    weights = [torch.sin(torch.arange(m.numel(), dtype=D) + 1).reshape(m.shape).to(m.dtype) for m in (y, state)]
    total = (y * weights[0]).sum() + (state * weights[1]).sum()
    total = total + 0 * sum(m.abs().sum() for m in inputs.values())  # of what an empty sequence does not use
    found = torch.autograd.grad(total, list(inputs.values()))
    return {"y": y, "state": state} | {f"gradient of {name}": g for name, g in zip(inputs, found)}


def assert_near(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in want.items():
        scale = max(float(expected.detach().abs().max()), 1e-30) if expected.numel() else 1.0
        atol = tolerance * scale
        found = got[name].to(expected.dtype)
        assert not found.numel() or float((found - expected).detach().abs().max()) <= atol, name
