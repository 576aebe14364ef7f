"""Operators whose coefficients vary with time, form by form, against an independent loop over time in float64."""

from __future__ import annotations

import torch

import statewise as sw
from fuzz.draw import Draw, expect_close


def check(draw: Draw) -> None:
    FAMILIES[draw.choice(sorted(FAMILIES), "family")](draw)


def ssd(draw: Draw) -> None:
    """h_t = a_t h_{t-1} + x_t B_t^T, y_t = h_t C_t, from Dao & Gu 2024, arXiv:2405.21060, eq. 2."""
    batch, length, groups = draw.size(3, "batch"), draw.size(200, "length"), draw.integer(1, 2, "groups")
    heads, p, n = groups * draw.integer(1, 3, "heads a group"), draw.integer(1, 9, "p"), draw.integer(1, 17, "n")
    dtype = draw.choice([torch.float64, torch.float32], "dtype")
    log_a = draw.decays(batch, length, heads, dtype=dtype)
    B, C = (draw.normal(batch, length, groups, n, dtype=dtype) for _ in range(2))
    x, h = draw.normal(batch, length, heads, p, dtype=dtype), draw.normal(batch, heads, p, n, dtype=dtype)
    form = draw.choice(list(sw.SSD.forms), "form")
    operator = sw.SSD(*(draw.laid_out(m) for m in (log_a, B, C)))
    state = operator.initial_state(batch, trailing=(p,))._replace(h=draw.laid_out(h))
    y, after = operator(draw.laid_out(x), state, form=form)

    wanted, h = [], h.double()
    for t in range(length):
        B_t, C_t = (m[:, t].double().repeat_interleave(heads // groups, 1) for m in (B, C))
        h = log_a[:, t].double().exp()[..., None, None] * h + x[:, t].double()[..., None] * B_t[..., None, :]
        wanted.append((h * C_t[..., None, :]).sum(-1))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    expect_close(f"SSD {form}: y", y, torch.stack(wanted, 1) if wanted else torch.zeros_like(y), tolerance)
    expect_close(f"SSD {form}: state", after.h, h, tolerance)


FAMILIES = {"ssd": ssd}
