"""Time-invariant models, batch 8: long convolutions, and the filters of S4D and S4."""

from __future__ import annotations

import functools
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from statewise.benchmark.case import (
    Action,
    Case,
    Function,
    Workload,
    case_name,
    kernel_case,
    our_sides,
    ours,
    with_kernels,
)
from statewise.benchmark.peers import time_invariant as peers
from statewise.mixers.s4 import S4Config
from statewise.operators import diagonal_low_rank
from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank

CONVOLUTIONS = ((256, 4096), (256, 16_384), (1024, 1024))
GENERATED = (1024, 4096, 16_384)
PAIRS = 32  # N/2: states stored, one of each conjugate pair
LAYER = 4096
CAUCHY_NODES = 2049  # for a filter of 4,096 taps


def convolution_inputs(width: int, length: int, batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, length, width, generator=generator),
        torch.randn(width, length, generator=generator) / length,
    ]


def filter_inputs(width: int) -> list[Tensor]:
    """c and log A of stable oscillating states, complex64."""
    generator = torch.Generator().manual_seed(0)
    rand = functools.partial(torch.rand, width, PAIRS, generator=generator)
    log_A = torch.complex(-rand() * 0.05, rand() * 3)
    return [torch.randn(width, PAIRS, dtype=torch.complex64, generator=generator), log_A]


def layer_inputs(width: int, length: int, batch: int) -> list[Tensor]:
    return [convolution_inputs(width, length, batch)[0], *filter_inputs(width)]


def cauchy_inputs(width: int, nodes: int) -> list[Tensor]:
    """Four numerators; nodes on a circle inside the unit circle, mapped as the bilinear rule maps them."""
    generator = torch.Generator().manual_seed(0)
    omega = 0.99 * torch.polar(torch.ones(nodes), torch.linspace(0, torch.pi, nodes))
    rand = functools.partial(torch.rand, width, PAIRS, generator=generator)
    Lambda = torch.complex(-rand(), rand() * 100)
    v = torch.randn(width, 4, PAIRS, dtype=torch.complex64, generator=generator)
    return [v, 2 * (1 - omega) / (1 + omega), Lambda]


def our_convolution(u: Tensor, K: Tensor) -> Tensor:
    from statewise.kernels.fft_convolution import fft_convolution

    return fft_convolution(u, K)


def our_vandermonde(c: Tensor, log_A: Tensor, length: int) -> Tensor:
    from statewise.kernels.vandermonde import vandermonde

    return vandermonde(c, log_A.exp(), length)


def our_cauchy(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    from statewise.kernels.cauchy import cauchy

    return cauchy(v, z, Lambda)


def layer(generate: Function, convolve: Function) -> Function:
    """Generation and convolution, what an S4D layer is without its projections."""
    return lambda u, c, log_A: convolve(u, generate(c, log_A, u.shape[1]))


def convolutions(quick: bool) -> list[Case]:
    found = []
    for width, length in CONVOLUTIONS:
        sizes = (8, length // 64, 2) if quick else (width, length, 8)
        for gradients in (False, True):
            sides: dict[str, Callable[[], Function]] = ours(our_convolution) | {"torch.fft": lambda: peers.convolution}
            if not gradients:
                sides["scipy"] = peers.scipy_convolution
            found.append(
                kernel_case(
                    case_name(f"{width} x {length:,}", gradients),
                    f"{sizes[0]} channels, L={sizes[1]}, batch {sizes[2]}",
                    functools.partial(convolution_inputs, *sizes),
                    sides,
                    gradients=gradients,
                    length=sizes[1],
                )
            )
    return found


def filters(quick: bool) -> list[Case]:
    width, batch, divisor = (8, 2, 64) if quick else (256, 8, 1)
    found = []
    for length in GENERATED:
        taps = length // divisor
        ways: dict[str, Function] = {
            "everything in memory": peers.vandermonde,
            "two-level": peers.two_level_vandermonde,
        }
        for gradients in (False, True):
            found.append(
                kernel_case(
                    case_name(f"S4D filter, L={length:,}", gradients),
                    f"{width} channels, N/2={PAIRS}",
                    functools.partial(filter_inputs, width),
                    ours(functools.partial(our_vandermonde, length=taps))
                    | {name: functools.partial(_with_length, way, taps) for name, way in ways.items()},
                    gradients=gradients,
                    length=taps,
                    rounds=3,
                )
            )
        if length != LAYER:
            continue
        for gradients in (False, True):
            layers = {name: functools.partial(layer, way, peers.convolution) for name, way in ways.items()}
            found.append(
                kernel_case(
                    case_name(f"S4D layer, L={length:,}", gradients),
                    f"{width} channels, N/2={PAIRS}, batch {batch}: generation and convolution",
                    functools.partial(layer_inputs, width, taps, batch),
                    ours(layer(our_vandermonde, our_convolution)) | layers,
                    gradients=gradients,
                    length=taps,
                )
            )
    nodes = 33 if quick else CAUCHY_NODES
    for gradients in (False, True):
        found.append(
            kernel_case(
                case_name(f"S4 Cauchy sums, {CAUCHY_NODES:,} nodes", gradients),
                f"{width} channels, N/2={PAIRS}, 4 numerators",
                functools.partial(cauchy_inputs, width, nodes),
                ours(our_cauchy) | {"everything in memory": lambda: peers.cauchy},
                gradients=gradients,
                length=nodes,
                rounds=3,
            )
        )
    found.append(_whole_filter(width, 64 if quick else LAYER))
    return found


def _whole_filter(width: int, length: int) -> Case:
    """S4's filter with all that it needs around the sums. Ours needs no power of A, see ``response_by_cauchy_sums``."""

    def generation() -> Action:
        return torch.no_grad()(functools.partial(_s4_operator(width).impulse_response, length))

    def plain() -> Action:
        operator = _s4_operator(width)

        def generate() -> Tensor:
            with mock.patch.object(diagonal_low_rank, "cauchy", peers.cauchy):
                return operator.response_by_cauchy_sums(length)

        return with_kernels("torch", torch.no_grad()(generate))

    return Case(
        name=case_name(f"S4 filter, L={LAYER:,}", False),
        setting=f"{width} channels, N/2={PAIRS}: sums, Woodbury's correction, inverse FFT",
        sides=our_sides(generation) | {"everything in memory": plain},
        length=length,
        rounds=3,
    )


def _s4_operator(width: int) -> DiagonalPlusLowRank:
    torch.manual_seed(0)
    operator = S4Config(d_state=2 * PAIRS).build(width).build_operators()[0]
    assert isinstance(operator, DiagonalPlusLowRank)
    return operator


def _with_length(way: Function, length: int) -> Function:
    return lambda c, log_A: way(c, log_A, length)


CONVOLUTION = Workload(
    name="convolution",
    summary="long convolutions, forward and backward: torch.fft over everything, scipy",
    cases=convolutions,
    memory=tuple(case_name("256 x 16,384", gradients) for gradients in (False, True)),
)
FILTERS = Workload(
    name="filters",
    summary="filters of S4D and S4 and the whole S4D layer: everything in memory, two levels in PyTorch",
    cases=filters,
    memory=tuple(
        case_name(what, gradients)
        for what in ("S4D filter, L=16,384", f"S4D layer, L={LAYER:,}", f"S4 Cauchy sums, {CAUCHY_NODES:,} nodes")
        for gradients in (False, True)
    ),
)
