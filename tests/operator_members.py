"""Random members of each operator family."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from statewise.operators import (
    SSD,
    CausalConvolution,
    DeltaRule,
    DenseLTI,
    DenseLTV,
    DiagonalLTI,
    DiagonalMIMO,
    DiagonalPlusLowRank,
    DiagonalPlusRankOne,
    Operator,
    SelectiveDiagonal,
)


def diagonal_complex(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    log_A = torch.complex(-torch.rand(3, 4, generator=g, dtype=torch.float64), torch.randn(3, 4, generator=g).double())
    B, C = (torch.randn(3, 4, generator=g, dtype=torch.complex128).to(wide) for _ in range(2))
    return DiagonalLTI(log_A.exp().to(wide), B, C), torch.randn(batch, length, 3, generator=g, dtype=dtype)


def diagonal_real_trailing(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    A = torch.rand(2, 3, generator=g, dtype=dtype) * 1.8 - 0.9
    B, C = (torch.randn(2, 3, generator=g, dtype=dtype) for _ in range(2))
    return DiagonalLTI(A, B, C), torch.randn(batch, length, 2, 2, 3, generator=g, dtype=dtype)


def diagonal_two_outputs(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, u = diagonal_complex(batch, length, dtype, seed)
    return DiagonalLTI(op.A, op.B, torch.stack([op.C, op.B * op.C], 1)), u  # type: ignore[attr-defined]


def diagonal_with_skip(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, u = diagonal_two_outputs(batch, length, dtype, seed)
    D = torch.linspace(-1, 2, 6, dtype=dtype).reshape(3, 2)
    return replace(op, D=D), u.unsqueeze(-1) * torch.tensor([1.0, -0.5], dtype=dtype)  # type: ignore[type-var]


def diagonal_mimo(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """Four states, three inputs, two outputs, a trailing axis."""
    op, _ = diagonal_complex(batch, length, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    D = torch.randn(2, 3, generator=g, dtype=dtype)
    u = torch.randn(batch, length, 3, 2, generator=g, dtype=dtype)
    return DiagonalMIMO(op.A[0], op.B.mT, op.C[:2], D), u  # type: ignore[attr-defined]


def diagonal_mimo_real(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, _ = diagonal_real_trailing(batch, length, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    u, D = torch.randn(batch, length, 2, generator=g, dtype=dtype), torch.randn(2, generator=g, dtype=dtype)
    return DiagonalMIMO(op.A[0], op.B.mT, op.C, D), u  # type: ignore[attr-defined]


def dense(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(3, 4, 4, generator=g, dtype=dtype)
    A = 0.9 * A / torch.linalg.matrix_norm(A, 2)[:, None, None]
    B, C = (torch.randn(3, 4, generator=g, dtype=dtype) for _ in range(2))
    return DenseLTI(A, B, C), torch.randn(batch, length, 3, generator=g, dtype=dtype)


def dense_outputs_trailing(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, _ = dense(batch, length, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    C = torch.randn(3, 2, 4, generator=g, dtype=dtype)
    u = torch.randn(batch, length, 3, 2, generator=g, dtype=dtype)
    return DenseLTI(op.A, op.B, C), u  # type: ignore[attr-defined]


def dense_time_varying(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    A = -torch.eye(3, dtype=dtype) - torch.rand(3, 3, generator=g, dtype=dtype).tril()
    B, C = torch.randn(3, generator=g, dtype=dtype), torch.randn(2, 2, 3, generator=g, dtype=dtype)
    return DenseLTV(A, B, C), torch.randn(batch, length, 2, generator=g, dtype=dtype)


def low_rank(
    batch: int, length: int, dtype: torch.dtype, seed: int, rank: int = 1, outputs: tuple[int, ...] = ()
) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.complex128).to(wide)

    imaginary = 3 * torch.randn(3, 4, generator=g, dtype=torch.float64)
    Lambda = torch.complex(-0.2 - torch.rand(3, 4, generator=g, dtype=torch.float64), imaginary).to(wide)
    dt = 0.05 + 0.4 * torch.rand(3, generator=g, dtype=dtype)
    op = DiagonalPlusLowRank(Lambda, draw(3, rank, 4), draw(3, 4), draw(3, *outputs, 4), dt)
    return op, torch.randn(batch, length, 3, generator=g, dtype=dtype)


def low_rank_two(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """Rank 2, two outputs, a Q of its own near P, and a trailing axis."""
    op, u = low_rank(batch, length, dtype, seed, rank=2, outputs=(2,))
    Q = op.P * 0.9  # type: ignore[attr-defined]
    return replace(op, Q=Q), u.unsqueeze(-1) * torch.tensor([1.0, -0.5], dtype=dtype)  # type: ignore[type-var]


def convolution(batch: int, length: int, dtype: torch.dtype, seed: int, n_taps: int = 4) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    taps = torch.randn(5, n_taps, generator=g, dtype=dtype) / n_taps
    return CausalConvolution(taps), torch.randn(batch, length, 5, generator=g, dtype=dtype)


def convolution_one_tap(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    return convolution(batch, length, dtype, seed, n_taps=1)


def convolution_long(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, u = convolution(batch, length, dtype, seed, n_taps=9)
    return op, u.unsqueeze(-1).expand(-1, -1, -1, 2)


def convolution_filter(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    return convolution(batch, length, dtype, seed, n_taps=40)


def ssd(
    batch: int,
    length: int,
    dtype: torch.dtype,
    seed: int,
    heads: int = 4,
    groups: int = 2,
    d_head: int = 3,
    d_state: int = 5,
    chunk_length: int = 8,
) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)
    log_a = -torch.rand(batch, length, heads, generator=g, dtype=dtype) * 2
    B, C = (torch.randn(batch, length, groups, d_state, generator=g, dtype=dtype) for _ in range(2))
    u = torch.randn(batch, length, heads, d_head, generator=g, dtype=dtype)
    return SSD(log_a, B, C, chunk_length), u


def ssd_with_skip(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """With step sizes and a skip."""
    op, u = ssd(batch, length, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    dt = torch.rand(batch, length, 4, generator=g, dtype=dtype)
    return replace(op, dt=dt, D=torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=dtype)), u  # type: ignore[call-arg]


def ssd_any_decay(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """Mild decays among such as -1e30, the least float32 and -inf, which is what a mask may use."""
    op, u = ssd(batch, length, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    strong = torch.tensor([-120.0, -800.0, -1e12, -1e30, torch.finfo(torch.float32).min, -torch.inf], dtype=dtype)
    log_a = strong[torch.randint(len(strong), (batch, length, 4), generator=g)]
    mild = torch.rand(batch, length, 4, generator=g) < 0.8
    return replace(op, log_a=torch.where(mild, op.log_a, log_a)), u  # type: ignore[attr-defined, call-arg]


def ssd_own_groups(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """B of two groups and C of three, of six heads."""
    op, u = ssd(batch, length, dtype, seed, heads=6, groups=2)
    C = ssd(batch, length, dtype, seed + 1, heads=6, groups=3)[0].C  # type: ignore[attr-defined]
    return replace(op, C=C), u  # type: ignore[call-arg]


def ssd_one_group(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    return ssd(batch, length, dtype, seed, heads=3, groups=1, d_head=2, d_state=7, chunk_length=64)


def selective(
    batch: int,
    length: int,
    dtype: torch.dtype,
    seed: int,
    d: int = 4,
    groups: int = 2,
    d_state: int = 3,
    options: bool = True,
    method: str = "mamba",
) -> tuple[Operator, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    A, dt = -2 * torch.rand(d, d_state, generator=g, dtype=dtype), draw(batch, length, d)
    B, C, u = draw(batch, length, groups, d_state), draw(batch, length, groups, d_state), draw(batch, length, d)
    if not options:
        return SelectiveDiagonal(dt.abs(), A, B, C, method=method), u
    more = {"D": draw(d), "gate": draw(batch, length, d), "dt_bias": draw(d)}
    return SelectiveDiagonal(dt, A, B, C, **more, softplus=True, method=method), u


def selective_zoh_trailing(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """Exact hold, B and C for each channel, an A that holds a zero, a bias without softplus, a trailing axis."""
    op, u = selective(batch, length, dtype, seed, d=3, groups=3, options=False, method="zoh")
    A = op.A.clone()  # type: ignore[attr-defined]
    A[0, 0] = 0
    bias = torch.tensor([0.1, 0.0, 0.3], dtype=dtype)
    op = replace(op, A=A, dt_bias=bias)  # type: ignore[type-var]
    return op, u.unsqueeze(-1) * torch.tensor([1.0, -0.5], dtype=dtype)


def selective_complex(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    op, u = selective(batch, length, dtype, seed, groups=1)
    g = torch.Generator().manual_seed(seed + 1)
    A, B, C = (
        torch.complex(m, torch.randn(m.shape, generator=g, dtype=dtype))
        for m in (op.A, op.B, op.C)  # type: ignore[attr-defined]
    )
    return replace(op, A=A, B=B, C=C), u  # type: ignore[type-var]


def selective_complex_zoh(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """Complex A with real B and C, exact hold, no options."""
    op, u = selective(batch, length, dtype, seed, options=False, method="zoh")
    A = torch.complex(op.A, torch.linspace(0.5, 3, op.A.numel(), dtype=dtype).reshape(op.A.shape))  # type: ignore[attr-defined]
    return replace(op, A=A), u  # type: ignore[type-var]


def delta_rule(
    batch: int, length: int, dtype: torch.dtype, seed: int, decay: str = "", groups: int = 2
) -> tuple[Operator, Tensor]:
    """Keys of length 1, beta up to 2; a decay of one, a number a head, or a number a channel."""
    g = torch.Generator().manual_seed(seed)
    k = torch.nn.functional.normalize(torch.randn(batch, length, groups, 5, generator=g, dtype=dtype), dim=-1)
    q = torch.randn(batch, length, groups, 5, generator=g, dtype=dtype)
    beta = 2 * torch.rand(batch, length, 4, generator=g, dtype=dtype)
    u = torch.randn(batch, length, 4, 3, generator=g, dtype=dtype)
    shape = {"head": (batch, length, 4), "channel": (batch, length, 4, 5)}.get(decay)
    log_a = None if shape is None else -2 * torch.rand(*shape, generator=g, dtype=dtype)
    return DeltaRule(q, k, beta, log_a, chunk_length=8), u


def delta_rule_gated(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    return delta_rule(batch, length, dtype, seed, decay="head", groups=4)


def delta_rule_of_channels(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """With mild decays among such as -800 and -inf."""
    op, u = delta_rule(batch, length, dtype, seed, decay="channel")
    g = torch.Generator().manual_seed(seed + 1)
    strong = torch.tensor([-120.0, -800.0, -1e30, -torch.inf], dtype=dtype)
    log_a = strong[torch.randint(len(strong), (batch, length, 4, 5), generator=g)]
    mild = torch.rand(batch, length, 4, 5, generator=g) < 0.9
    return replace(op, log_a=torch.where(mild, op.log_a, log_a)), u  # type: ignore[attr-defined, call-arg]


def rank_one(batch: int, length: int, dtype: torch.dtype, seed: int, heads: bool = False) -> tuple[Operator, Tensor]:
    """As RWKV-7 has it: erased along a part of what is read, written along a key of its own."""
    g = torch.Generator().manual_seed(seed)
    q, k, kappa = (torch.randn(batch, length, 2, 5, generator=g, dtype=dtype) for _ in range(3))
    kappa = torch.nn.functional.normalize(kappa, dim=-1)
    log_a = -0.6 * torch.rand(batch, length, 2, *(() if heads else (5,)), generator=g, dtype=dtype)
    erase = kappa * torch.rand(batch, length, 2, 5, generator=g, dtype=dtype)
    u = torch.randn(batch, length, 2, 3, generator=g, dtype=dtype)
    return DiagonalPlusRankOne(log_a, k, q, kappa, erase, chunk_length=7), u


def rank_one_of_heads(batch: int, length: int, dtype: torch.dtype, seed: int) -> tuple[Operator, Tensor]:
    """A decay a head, and erased along what is written."""
    op, u = rank_one(batch, length, dtype, seed, heads=True)
    k = torch.nn.functional.normalize(op.k, dim=-1)  # type: ignore[attr-defined]
    return replace(op, k=k, erase=None), u  # type: ignore[call-arg]
