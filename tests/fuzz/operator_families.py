"""SSD and SelectiveDiagonal: random members of any dtype and decay, each with its equation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import statewise as sw
from fuzz.draw import Draw
from fuzz.operator_case import Case, compare
from statewise.operators import SelectiveDiagonal


def ssd(draw: Draw) -> None:
    """h_t = a_t h_{t-1} + dt_t x_t B_t^T, y_t = h_t C_t + D x_t, from Dao & Gu 2024, arXiv:2405.21060, eq. 2."""
    batch, length, groups = draw.size(3, "batch"), draw.size(200, "length"), draw.integer(1, 2, "groups")
    per_group, n = draw.integer(1, 3, "heads a group"), draw.integer(1, 17, "n")
    heads, trailing = groups * per_group, draw.choice([(), (1,), (3,), (9,), (2, 2)], "trailing")
    dtype = draw.choice([torch.float64, torch.float32, torch.float32, torch.bfloat16], "dtype of u, B, C")
    wide = torch.promote_types(dtype, torch.float32)
    log_a = draw.decays(batch, length, heads, dtype=wide, largest=draw.choice([1e3, 1e30], "largest decay"))
    if draw.chance(0.3, "some -inf"):
        log_a = log_a.masked_fill(draw.normal(batch, length, heads) > 1.5, -torch.inf)
    B, C = (draw.normal(batch, length, groups, n, dtype=dtype) for _ in range(2))
    options = {"dt": draw.normal(batch, length, heads, dtype=wide).abs(), "D": draw.normal(heads, dtype=wide)}
    options = {name: m for name, m in options.items() if draw.chance(0.5, f"with {name}")}
    operator = sw.SSD(log_a, B, C, draw.choice([64, 1, 5, 16, 100], "chunk_length"), **options)
    u, h = (
        draw.normal(batch, length, heads, *trailing, dtype=dtype),
        draw.normal(batch, heads, *trailing, n, dtype=wide),
    )

    def step(now: dict[str, Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        ones = [1] * len(trailing)
        B, C = (now[k].repeat_interleave(per_group, 1).reshape(batch, heads, *ones, n) for k in "BC")
        a = now["log_a"].exp().reshape(batch, heads, *ones, 1)
        x = u * now["dt"].reshape(batch, heads, *ones) if "dt" in now else u
        h = a * h + x[..., None] * B
        y = (h * C).sum(-1)
        return (y + now["D"].reshape(heads, *ones) * u if "D" in now else y), h

    def state(op: Any, h: Tensor) -> Any:
        return op.initial_state(batch, trailing=trailing)._replace(h=h)

    compare(draw, Case(operator, u, h, step, state))


def selective(draw: Draw) -> None:
    """h_t = exp(Delta A) h_{t-1} + Bbar u, y_t = (C h_t + D u_t) SiLU(gate), from Gu & Dao 2023, arXiv:2312.00752."""
    batch, length, groups = draw.size(2, "batch"), draw.size(130, "length"), draw.choice([1, 1, 2, 3], "groups")
    per_group, n = draw.choice([1, 2, 5, 17], "channels a group"), draw.choice([1, 2, 4, 9, 16], "n")
    d, trailing = groups * per_group, draw.choice([(), (), (3,), (2, 2)], "trailing")
    dtype = draw.choice([torch.float64, torch.float32, torch.bfloat16, torch.float16], "dtype of u, dt, B, C, gate")
    wide = torch.promote_types(dtype, torch.float32)
    half = draw.choice([wide, dtype], "dtype of D, dt_bias")
    softplus, exact = draw.chance(0.5, "softplus"), draw.chance(0.3, "zoh")
    A = draw.decays(d, n, dtype=wide, largest=draw.choice([1e3, 1e30], "largest decay"))
    is_complex = draw.chance(0.25, "complex A")
    if is_complex:
        A = torch.complex(A, draw.normal(d, n, dtype=wide))
    B, C = (draw.normal(batch, length, groups, n, dtype=dtype) for _ in range(2))
    dt = draw.normal(batch, length, d, dtype=dtype)
    # u is at most divided by A; a complex Delta A that overflows may be NaN, as the kernel's docstring says
    if exact and not is_complex and dtype != torch.float16 and draw.chance(0.2, "steps to 1e25"):
        dt = dt * 10 ** (25 * draw.normal(batch, length, d).abs().clamp(max=1)).to(dtype)
        A = A.clamp(max=-1e-2)
    options = {
        "D": draw.normal(d, dtype=half),
        "gate": draw.normal(batch, length, d, dtype=dtype),
        "dt_bias": draw.normal(d, dtype=half),
    }
    options = {name: m for name, m in options.items() if draw.chance(0.5, f"with {name}")}
    if not softplus:
        dt, options = dt.abs(), {name: m.abs() if name == "dt_bias" else m for name, m in options.items()}
    operator = SelectiveDiagonal(dt, A, B, C, **options, softplus=softplus, method="zoh" if exact else "mamba")
    pair = (2,) if is_complex else ()
    u = draw.normal(batch, length, d, *trailing, dtype=dtype)
    h = draw.normal(batch, d, *trailing, n, *pair, dtype=wide)
    ones = [1] * len(trailing)

    def step(now: dict[str, Tensor], u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        B, C = (now[k].repeat_interleave(per_group, 1).reshape(batch, d, *ones, n) for k in "BC")
        raw = now["dt"] + now["dt_bias"] if "dt_bias" in now else now["dt"]
        delta = (torch.logaddexp(raw, torch.zeros_like(raw)) if softplus else raw).reshape(batch, d, *ones, 1)
        A = now["A"].reshape(d, *ones, n)
        held = delta * _phi1(delta * A) if exact else delta
        state = torch.complex(h[..., 0], h[..., 1]) if is_complex else h
        state = torch.exp(delta * A) * state + held * B * u[..., None]
        y = (C * state).sum(-1)
        y = 2 * y.real if is_complex else y
        if "D" in now:
            y = y + now["D"].reshape(d, *ones) * u
        if "gate" in now:
            y = y * (now["gate"] * torch.sigmoid(now["gate"])).reshape(batch, d, *ones)
        return y, torch.view_as_real(state) if is_complex else state

    def state(op: Any, h: Tensor) -> Any:
        return op.initial_state(batch, trailing=trailing)._replace(h=h)

    # without decay the angles of hundreds of steps add up, and their roundings with them
    compare(draw, Case(operator, u, h, step, state, looser=30 if is_complex else 1))


def _phi1(z: Tensor) -> Tensor:
    """(e^z - 1) / z, below 1/4 by its series 1 + z / 2 (1 + z / 3 (1 + ...))."""
    near = z.abs() < 0.25
    small, large = torch.where(near, z, 0), torch.where(near, 1, z)
    series = torch.ones_like(z)
    for k in range(14, 1, -1):
        series = 1 + small / k * series
    return torch.where(near, series, (torch.exp(large) - 1) / large)
