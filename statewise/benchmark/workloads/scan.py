"""The selective scan of Mamba: batch 1, 1536 channels, 16 states, with D, gate and softplus."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import Case, Function, Workload, case_name, kernel_case, ours
from statewise.benchmark.peers import scan as peers

LENGTHS = (512, 2048, 8192)
LONG = (4096, 16_384, 65_536, 131_072)  # ours alone: the cost of a token must not grow
LOOP_GRADIENTS = 512  # the published loop takes 40 s backward at 2,048


def inputs(length: int, width: int = 1536, n_states: int = 16, batch: int = 1) -> list[Tensor]:
    """u, dt before its softplus, A, B, C, D, gate: sizes of 130M parameters, values as a new model has them."""
    generator = torch.Generator().manual_seed(0)
    randn = functools.partial(torch.randn, generator=generator)
    return [
        randn(batch, length, width),
        randn(batch, length, width) - 4,
        -torch.arange(1.0, n_states + 1).expand(width, -1).contiguous(),
        randn(batch, length, 1, n_states),
        randn(batch, length, 1, n_states),
        torch.ones(width),
        randn(batch, length, width),
    ]


def exponentials(length: int, gradients: bool = False, width: int = 1536, n_states: int = 16) -> float:
    """In a forward pass: exp(dt A) of each state, and one each for the softplus of dt and for the gate; with gradients
    all of them again."""
    return float((1 + gradients) * length * width * (n_states + 2))


def our_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, gate: Tensor) -> Any:
    from statewise.kernels.selective_scan import selective_scan

    h0 = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
    return selective_scan(u, dt, A, B, C, h0, D=D, gate=gate, softplus=True)


def cases(quick: bool) -> list[Case]:
    width = 32 if quick else 1536
    found = []
    for length in (*LENGTHS, *LONG):
        steps = max(8, length // 512) if quick else length
        for gradients in (False, True):
            sides: dict[str, Callable[[], Function]] = ours(our_scan)
            if length in LENGTHS:
                sides |= {"chunked, eager": lambda: peers.chunked, "mambapy": peers.mambapy}
                if length <= (LOOP_GRADIENTS if gradients else max(LENGTHS)):
                    sides |= {"published loop": lambda: peers.paper_loop}
            found.append(
                kernel_case(
                    case_name(f"L={length:,}", gradients),
                    f"batch 1, {width} channels, N=16, with D, gate and softplus",
                    functools.partial(inputs, steps, width),
                    sides,
                    gradients=gradients,
                    length=steps,
                    rounds=3 if length > 2048 else 5,
                )
            )
    return found


WORKLOAD = Workload(
    name="scan",
    summary="selective scan (Mamba): the published loop, chunks in PyTorch, mambapy",
    cases=cases,
    memory=tuple(case_name("L=2,048", gradients) for gradients in (False, True)),
)
