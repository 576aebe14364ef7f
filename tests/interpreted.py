"""What tests of Triton kernels share: they run on CPU tensors under Triton's interpreter, where it is.

`make gpu-check` runs them, and `make gpu-day` on a GPU (STATEWISE_TEST_DEVICE=cuda). Elsewhere they are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None
    or (os.environ.get("TRITON_INTERPRET") != "1" and os.environ.get("STATEWISE_TEST_DEVICE") != "cuda"),
    reason="needs Triton and TRITON_INTERPRET=1: `make gpu-check` has both",
)
# left out by `make gpu-check-few`: what takes the interpreter seconds, where shorter cases reach the same lines
long_interpreted = pytest.mark.long_interpreted
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def long_but(short: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which all others than the short ones are long."""
    kept = list(short)
    return [value if value in kept else pytest.param(value, marks=long_interpreted) for value in values]


def results(run: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of their products with fixed numbers."""
    found = run(*inputs)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    slopes = [torch.sin(1.0 + torch.arange(m.numel(), dtype=torch.float64)).view(m.shape).to(m.dtype) for m in outputs]
    grads = torch.autograd.grad(outputs, list(inputs), slopes, allow_unused=True, materialize_grads=True)
    return [m.detach() for m in (*outputs, *grads)]


def compare(
    fast: Callable[..., Tensor | Sequence[Tensor]],
    definition: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    tolerance: float,
) -> None:
    """Outputs and gradients against the definition in float64, at the same inputs."""
    exact = [m.detach().to(torch.complex128 if m.is_complex() else torch.float64).requires_grad_() for m in inputs]
    for i, (got, want) in enumerate(zip(results(fast, inputs), results(definition, exact))):
        largest = max(1.0, float(want.abs().max()) if want.numel() else 0.0)
        bounds = {"atol": 4 * tolerance * largest, "rtol": tolerance}
        torch.testing.assert_close(got.to(want.dtype), want, **bounds, msg=lambda m, i=i: f"result {i}: {m}")
