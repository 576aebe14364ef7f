"""What the kernels of a step compute, in PyTorch: with the modules' own operations, rounded where the modules round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32  # columns of a matrix in 4 bits that share a scale


@dataclass(frozen=True)
class IntegerMatrix:
    """W = scale q, (n_rows, n_columns), as a GPU reads it.

    data:    8 bits: q, (n_rows, n_columns) int8. 4 bits: (n_rows, half) uint8, half being 32 ceil(n_columns / 64): the
             lower half of byte j is q + 8 of column j, and its upper half of column j + half.
    scales:  (n_rows, 1), or with 4 bits (n_rows, 2 half / 32), one for each 32 columns
    """

    data: Tensor
    scales: Tensor
    n_columns: int

    @property
    def bits(self) -> int:
        return 4 if self.data.dtype == torch.uint8 else 8

    def rows(self, rows: slice | Tensor) -> IntegerMatrix:
        """These alone, of a tensor of ids in its shape; of a slice they share the memory."""
        return IntegerMatrix(self.data[rows], self.scales[rows], self.n_columns)

    def integers(self) -> Tensor:
        """q, (..., n_rows, n_columns) int8."""
        if self.bits == 8:
            return self.data
        return torch.cat([self.data & 15, self.data >> 4], -1)[..., : self.n_columns].to(torch.int8) - 8

    def widened(self) -> Tensor:
        """W in float32, which holds it exactly."""
        scales = self.scales.float()
        if self.bits == 4:
            scales = scales.repeat_interleave(GROUP, -1)[..., : self.n_columns]
        return scales * self.integers()


def pack(q: Tensor, scales: Tensor, bits: int) -> IntegerMatrix:
    """q (n_rows, n_columns) int8, and scales (n_rows, 1), or with 4 bits (n_rows, ceil(n_columns / 32))."""
    n_columns = q.shape[1]
    if bits == 8:
        return IntegerMatrix(q.contiguous(), scales.contiguous(), n_columns)
    half = -(-n_columns // (2 * GROUP)) * GROUP
    low, high = F.pad(q + 8, (0, 2 * half - n_columns)).to(torch.uint8).split(half, 1)
    return IntegerMatrix(low | (high << 4), F.pad(scales, (0, 2 * half // GROUP - scales.shape[1])), n_columns)


class Norm(NamedTuple):
    """RMSNorm over each of ``n_groups`` groups of features: weight (width,), to which ``offset`` is added."""

    weight: Tensor
    eps: float
    n_groups: int = 1
    offset: float = 0.0


class Shift(NamedTuple):
    """What moves a short convolution's state on: the raw inputs are columns of ``projected`` from ``first`` on.

    inputs: (rows, n_taps - 1, width) float32, oldest first; written over   projected: (rows, ...)
    """

    inputs: Tensor
    projected: Tensor
    first: int


class Layer(NamedTuple):
    """The parameters between a Mamba-2 layer's two projections.

    taps: (width, n_taps), newest first   bias: (width,) or None   A_log, dt_bias, D: (n_heads,) float32
    dt_limit: what dt is clamped to after its softplus
    """

    taps: Tensor
    bias: Tensor | None
    A_log: Tensor
    dt_bias: Tensor
    D: Tensor
    n_groups: int
    dt_limit: tuple[float, float]


def norm_matvec(
    x: Tensor,
    norm: Norm | None,
    weight: Tensor | IntegerMatrix,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    shift: Shift | None = None,
    *,
    out: Tensor,
) -> Tensor:
    """residual + W RMSNorm(x) + bias, in ``out``; and the shift, if there is one. norm: None: W x

    Shapes:   x: (rows, k), any floating dtype   weight: (n, k)   bias: (n,)   residual: (rows, n)   out: (rows, n)
    Numerics: the normed x is rounded to the dtype of the weight, and before integers to that of the norm's own; sums
              are float32. With a residual the product is rounded to the dtype of ``out`` before it is added.
    """
    normed = x.float()
    if norm is not None:
        groups = normed.unflatten(-1, (norm.n_groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], None, norm.eps).flatten(-2) * (norm.weight.float() + norm.offset)
        normed = normed.to(norm.weight.dtype if isinstance(weight, IntegerMatrix) else weight.dtype).float()
    y = normed @ (weight.widened() if isinstance(weight, IntegerMatrix) else weight.float()).mT
    if bias is not None:
        y = y + bias.float()
    y = y.to(out.dtype)
    out.copy_(y if residual is None else y + residual)
    if shift is not None and shift.inputs.numel():
        raw = shift.projected[:, shift.first : shift.first + shift.inputs.shape[2]].float()
        shift.inputs.copy_(torch.cat([shift.inputs[:, 1:], raw[:, None]], 1))
    return out


def mamba2_step(projected: Tensor, inputs: Tensor, h: Tensor, layer: Layer) -> Tensor:
    """h_t = a h_{t-1} + dt x B^T, written over h; returns (h_t C + D x) SiLU(z), float32.

    Shapes:   projected: (rows, d_inner + width + n_heads): z; x, B, C before their convolution; dt
              inputs: (rows, n_taps - 1, width) float32, the state of the convolution, which stays as it is
              h: (rows, n_heads, d_head, d_state) float32   ->   (rows, n_heads * d_head)
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 7.1; rounded as statewise/mixers/mamba2.py does.
    """
    _, heads, d_head, d_state = h.shape
    width, d_inner = layer.taps.shape[0], heads * d_head
    z, raw, dt = projected.split([d_inner, width, heads], -1)
    past = torch.cat([inputs, raw[:, None].float()], 1)
    convolved = (past * layer.taps.float().flip(1).mT).sum(1)
    if layer.bias is not None:
        convolved = convolved + layer.bias.float()
    convolved = F.silu(convolved).to(projected.dtype).float()
    x, B, C = convolved.split([d_inner, *[layer.n_groups * d_state] * 2], -1)
    x = x.unflatten(-1, (heads, d_head))
    B, C = (
        m.unflatten(-1, (layer.n_groups, d_state)).repeat_interleave(heads // layer.n_groups, 1)[:, :, None]
        for m in (B, C)
    )
    dt = F.softplus(dt.float() + layer.dt_bias)
    if layer.dt_limit != (0.0, math.inf):
        dt = dt.clamp(*layer.dt_limit)
    a = (-dt * layer.A_log.exp()).exp()
    h.mul_(a[..., None, None]).add_((x * dt[..., None])[..., None] * B)
    y = (h * C).sum(-1) + x * layer.D[:, None]
    return y.flatten(1) * F.silu(z.float())


def trial(path: Any, *sample: Any) -> list[Tensor]:
    """What the canary compares: the outputs of a whole step of one layer, and the states behind it.

    path: this module, or ``triton.py`` beside it
    """
    x, before, first, behind, second, bias, layer, inputs, h, wide = sample
    inputs, h = inputs.clone(), h.clone()
    n_out = len(first.data if isinstance(first, IntegerMatrix) else first)
    out = torch.empty(len(x), n_out, dtype=x.dtype, device=x.device)
    projected = path.norm_matvec(x, before, first, out=out)
    u = path.mamba2_step(projected, inputs, h, layer)
    shift = Shift(inputs, projected, u.shape[1])
    y = path.norm_matvec(u, behind, second, bias, x, shift, out=torch.empty_like(x))
    alone = path.norm_matvec(x, None, first, out=torch.empty_like(projected))
    found = [projected, u, y, inputs, h, alone]
    if wide is not None:
        found.append(path.norm_matvec(wide[0], None, wide[1], out=torch.empty_like(wide[0][:, :3])))
    return found
