"""The kernels of mamba_ssm and fla with our arguments, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from torch import Tensor

from statewise.benchmark.gpu.stages import Skipped


def mamba_ssm_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    scan = _function("mamba_ssm", "mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    y: Tensor = scan(x, dt, A, B, C, chunk_size=256)
    return y


def fla_inputs(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """As :func:`fla_ssd` takes them, made before its time is taken: every head has keys and queries of its own."""
    q, k = (m.expand(-1, -1, x.shape[2], -1).contiguous() for m in (C, B))
    return [x, dt, A, k, q]


def fla_ssd(x: Tensor, dt: Tensor, A: Tensor, k: Tensor, q: Tensor) -> Tensor:
    """As simple gated linear attention."""
    chunk = _function("fla", "fla.ops.simple_gla", "chunk_simple_gla")
    found = chunk(q, k, x * dt[..., None].to(x.dtype), dt * A, scale=1.0)
    y: Tensor = found[0] if isinstance(found, tuple) else found
    return y


def mamba_ssm_inputs(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """As :func:`mamba_ssm_scan` takes them, made before its time is taken: the channels lie before the steps."""
    return [u.mT.contiguous(), dt.mT.contiguous(), A, *(m[:, :, 0].mT.contiguous() for m in (B, C))]


def mamba_ssm_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    scan = _function("mamba_ssm", "mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    y: Tensor = scan(u, dt, A, B, C)
    return y.mT


def _function(package: str, module: str, name: str) -> Any:
    """Errors:  Skipped if it is not installed, or cannot be imported here."""
    if importlib.util.find_spec(package) is None:
        raise Skipped(f"{package} is not installed")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a compiled extension of another version raises
        raise Skipped(f"{package} cannot be imported: {type(error).__name__}: {str(error)[:150]}") from error
