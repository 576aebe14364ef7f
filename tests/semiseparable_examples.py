"""Semiseparable matrices to test with, their entries by the formula, and the work of a product counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.semiseparable import (
    SequentiallySemiseparable,
)

LENGTHS = (1, 2, 3, 7, 13, 63, 64, 65, 257)
STRUCTURES = ("scalar", "diagonal", "dense")


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decays(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Between -1 and 1, and every fifth one exactly zero."""
    a = randn(*shape, seed=seed).tanh()
    a.view(-1)[4::5] = 0
    return a.to(dtype)


def transitions(structure: str, batch: tuple[int, ...], length: int, d_state: int, seed: int = 2) -> Tensor:
    trailing = {"scalar": (), "diagonal": (d_state,), "dense": (d_state, d_state)}[structure]
    return decays(*batch, length, *trailing, seed=seed) / (d_state**0.5 if structure == "dense" else 1)


def random_sss(structure: str, length: int, d_state: int, batch: tuple[int, ...] = (), seed: int = 3) -> Any:
    A = transitions(structure, batch, length, d_state, seed)
    B, C = randn(*batch, length, d_state, seed=seed + 1), randn(*batch, length, d_state, seed=seed + 2)
    return SequentiallySemiseparable(A, B, C)


def by_formula(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """M_ji = C_j^T A_j ... A_{i+1} B_i, one entry after the other; A (T, N, N), B and C (T, N)."""
    length, d_state = B.shape
    M = torch.zeros(length, length, dtype=B.dtype)
    for j in range(length):
        for i in range(j + 1):
            product = torch.eye(d_state, dtype=B.dtype)
            for k in range(i + 1, j + 1):
                product = A[k] @ product
            M[j, i] = C[j] @ product @ B[i]
    return M


def as_matrices(A: Tensor, d_state: int, structure: str) -> Tensor:
    if structure == "dense":
        return A
    return torch.diag_embed(A if structure == "diagonal" else A[..., None].expand(*A.shape, d_state))


class Work(TorchDispatchMode):
    """Counts calls, and the elements that multiplications and additions write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.elements = 0, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        name = func.overloadpacket.__name__
        if name in ("mul", "add", "mm", "bmm", "cumsum"):
            self.elements[name] += result.numel()
        return result


def work(matrix: Any, x: Tensor) -> Work:
    with Work() as counted:
        matrix @ x
    return counted
