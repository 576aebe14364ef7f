"""``mamba_ssm``'s Mamba-3 as it was published, slowly: the shapes that its constructor makes, and its forward on them.

With several inputs (MIMO) number i of a state turns with number i + d_state / 2, else with its neighbour. Angles are
absolute. Nothing of Statewise is used.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DEFAULTS = {"d_state": 128, "expand": 2, "headdim": 64, "ngroups": 1, "rope_fraction": 0.5, "A_floor": 1e-4} | {
    "is_mimo": False,
    "mimo_rank": 4,
    "is_outproj_norm": False,
    "A_activation": "heavy_tail",
}


def sizes(config: dict[str, Any], d_model: int) -> dict[str, Any]:
    c = DEFAULTS | config
    c["rank"] = c["mimo_rank"] if c["is_mimo"] else 1
    c["inner"] = c["expand"] * d_model
    c["heads"] = c["inner"] // c["headdim"]
    c["angles"] = int(c["d_state"] * c["rope_fraction"]) // 2
    return c


def shapes(config: dict[str, Any], d_model: int) -> dict[str, tuple[tuple[int, ...], float]]:
    """By name the shape, and what the drawn numbers are around."""
    c = sizes(config, d_model)
    inner, heads, n, p, rank = (c[name] for name in ("inner", "heads", "d_state", "headdim", "rank"))
    rows = 2 * inner + 2 * n * c["ngroups"] * rank + 3 * heads + c["angles"]
    found: dict[str, tuple[tuple[int, ...], float]] = {
        "in_proj.weight": ((rows, d_model), 0.0),
        "dt_bias": ((heads,), -2.0),
        "B_bias": ((heads, rank, n), 1.0),
        "C_bias": ((heads, rank, n), 1.0),
        "B_norm.weight": ((n,), 1.0),
        "C_norm.weight": ((n,), 1.0),
        "D": ((heads,), 1.0),
    }
    if c["is_mimo"]:
        found |= {f"mimo_{letter}": ((heads, rank, p), 1.0) for letter in "xzo"}
    if c["is_outproj_norm"]:
        found["norm.weight"] = ((inner,), 1.0)
    return found | {"out_proj.weight": ((d_model, inner), 0.0)}


def forward(config: dict[str, Any], tensors: dict[str, Tensor], u: Tensor) -> Tensor:
    """u (length, d_model) -> the same. tensors: by their names in the layer, float64."""
    c = sizes(config, u.shape[1])
    inner, heads, n, p, rank, groups = (c[name] for name in ("inner", "heads", "d_state", "headdim", "rank", "ngroups"))
    parts = [inner, inner, n * groups * rank, n * groups * rank, heads, heads, heads, c["angles"]]
    z, x, B, C, dt, A, trap, angles = (u @ tensors["in_proj.weight"].T).split(parts, -1)
    z, x = (m.reshape(len(u), heads, p) for m in (z, x))
    B, C = (m.reshape(len(u), rank, groups, n) for m in (B, C))
    B, C = rms(B) * tensors["B_norm.weight"], rms(C) * tensors["C_norm.weight"]
    y = torch.zeros(len(u), heads, p, dtype=torch.float64)
    one = torch.ones(heads, 1, p, dtype=torch.float64)
    up, gate, down = (tensors.get(f"mimo_{letter}", one) for letter in "xzo")
    for h in range(heads):
        group = h // (heads // groups)
        S, before, theta = (torch.zeros(p, n).double(), torch.zeros(p, n).double(), torch.zeros(c["angles"]).double())
        for t in range(len(u)):
            step = F.softplus(dt[t, h] + tensors["dt_bias"][h])
            a = A[t, h]
            rate = F.softplus(a) if c["A_activation"] == "softplus" else (1 + a if a >= 0 else 1 / (1 - a))
            alpha, share = torch.exp(-rate.clamp(min=c["A_floor"]) * step), torch.sigmoid(trap[t, h])
            theta = (theta + torch.tanh(angles[t]) * step * math.pi) % (2 * math.pi)
            k, q = (
                turned(m[t, :, group] + tensors[f"{name}_bias"][h], theta, halves=c["is_mimo"])
                for m, name in ((B, "B"), (C, "C"))
            )
            v = x[t, h] * up[h]  # (rank, p)
            now = torch.einsum("rp,rn->pn", v, k)
            S = alpha * S + (1 - share) * step * alpha * before + share * step * now
            before = now
            read = torch.einsum("pn,rn->rp", S, q) + tensors["D"][h] * v
            if c["is_outproj_norm"]:
                read = rms(read) * tensors["norm.weight"].reshape(heads, p)[h]
            own = z[t, h] * gate[h]
            y[t, h] = (down[h] * read * own / (1 + torch.exp(-own))).sum(0)
    return y.reshape(len(u), inner) @ tensors["out_proj.weight"].T


def turned(m: Tensor, theta: Tensor, *, halves: bool) -> Tensor:
    """m (rank, n)"""
    found, half = m.clone(), m.shape[1] // 2
    for i, angle in enumerate(theta.tolist()):
        one, two = (i, half + i) if halves else (2 * i, 2 * i + 1)
        found[:, one] = m[:, one] * math.cos(angle) - m[:, two] * math.sin(angle)
        found[:, two] = m[:, one] * math.sin(angle) + m[:, two] * math.cos(angle)
    return found


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
