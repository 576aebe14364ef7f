"""State-space duality (Mamba-2): batch 1, 24 heads of 64, 128 states, compared with causal attention of as many
heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import Case, Function, Workload, case_name, kernel_case, ours
from statewise.benchmark.peers import ssd as peers

LENGTHS = (256, 512, 1024, 2048, 8192)
LONG = (4096, 16_384, 65_536)
LISTING = 2048  # the listing multiplies by chunks x chunks matrices and puts length x 64 of all heads into memory
ATTENTION = "causal attention"


def inputs(length: int, heads: int = 24, d_head: int = 64, d_state: int = 128) -> list[Tensor]:
    """x times dt, log_a, B, C."""
    generator = torch.Generator().manual_seed(0)
    randn = functools.partial(torch.randn, generator=generator)
    return [
        randn(1, length, heads, d_head) / 10,
        -torch.rand(1, length, heads, generator=generator) / 10,
        randn(1, length, 1, d_state),
        randn(1, length, 1, d_state),
    ]


def operations(length: int, gradients: bool = False, heads: int = 24, d_head: int = 64, d_state: int = 128) -> float:
    """In a forward pass, those that every chunk length has: x B^T into the states and C h out of them; with gradients
    two more products for each."""
    return float((3 if gradients else 1) * length * heads * 2 * (2 * d_head * d_state))


def our_ssd(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor) -> Any:
    from statewise.kernels.ssd import ssd

    return ssd(x, log_a, B, C, x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]))


def attention_beside(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Attention over queries, keys and values of the size of x, for which one tensor serves."""
    heads_first = x.transpose(1, 2)
    return peers.attention(heads_first, heads_first, heads_first)


def cases(quick: bool) -> list[Case]:
    heads = 2 if quick else 24
    found = []
    for length in sorted((*LENGTHS, *LONG)):
        shown = max(64, length // 512 // 64 * 64) if quick else length
        for gradients in (False, True):
            sides: dict[str, Callable[[], Function]] = ours(our_ssd)
            if length in LENGTHS:
                sides[ATTENTION] = lambda: attention_beside
                sides["batched matmul"] = lambda: peers.batched_matmul
            if length <= LISTING:
                sides["published listing"] = lambda: peers.paper_listing
            found.append(
                kernel_case(
                    case_name(f"L={length:,}", gradients),
                    f"batch 1, {heads} heads of 64, N=128, one group",
                    functools.partial(inputs, shown, heads),
                    sides,
                    gradients=gradients,
                    length=shown,
                    rounds=2 if length == 8192 else 5 if length <= 2048 else 3,
                )
            )
    return found


WORKLOAD = Workload(
    name="ssd",
    summary="state-space duality (Mamba-2): the published listing, batched matmul, causal attention",
    cases=cases,
    memory=tuple(case_name("L=2,048", gradients) for gradients in (False, True)),
)
