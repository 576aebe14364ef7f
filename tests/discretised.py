"""Systems to discretise, and how two results differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

F64 = torch.float64


def options(method: str) -> dict[str, Any]:
    return {"method": method, "alpha": 0.3 if method == "gbt" else None}


def tensor(values: Any, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def relative(ours: Tensor, exact: Any) -> float:
    """In the Frobenius norm. A result that underflows must be as small as the exact one."""
    exact = np.asarray(exact)
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(ours.numpy() - exact) / size) if size > 1e-290 else float(ours.abs().max() > 1e-280)


def stable(rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    """Random matrices, moved to the left until the slowest mode decays at 0.1 to 1."""
    A = rng.standard_normal((batch, n, n))
    slowest = np.linalg.eigvals(A).real.max(-1)
    return A - (slowest + rng.uniform(0.1, 1, batch))[:, None, None] * np.eye(n)


def stiff(rng: np.random.Generator, n: int, normal: bool) -> np.ndarray:
    """Real eigenvalues from -1e6 to -1e-6, with orthogonal or with any eigenvectors."""
    V = rng.standard_normal((n, n))
    V = np.linalg.qr(V)[0] if normal else V
    rates = np.concatenate([[-6, 6], rng.uniform(-6, 6, n - 2)])
    return V @ np.diag(-(10.0**rates)) @ np.linalg.inv(V)
