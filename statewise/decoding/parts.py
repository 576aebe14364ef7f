"""What layers of every kind are made of, as instructions: norms, MLPs, short convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from statewise.decoding.instructions import Activation, Add, Clear, Norm
from statewise.decoding.operands import ActivationKind, NormKind, Place, Slot
from statewise.decoding.program import Program
from statewise.decoding.recurrences import Convolution
from statewise.mixers.rms_norm import RMSNorm
from statewise.mixers.short_convolution import ShortConvolution
from statewise.models.batch_norm import BatchNorm
from statewise.models.mlp import MLP
from statewise.models.shared_transformer import Adapted


def emit_norm(
    program: Program,
    norm: RMSNorm | nn.LayerNorm | BatchNorm,
    x: Place,
    y: Place,
    *,
    wait: bool = False,
    stream: float = 1.0,
    scale: float = 1.0,
) -> Place:
    """y = scale norm(stream x). Returns y."""
    weight: Tensor = norm.weight
    bias: Tensor | None = None
    if isinstance(norm, RMSNorm):
        kind, weight = NormKind.RMS, norm.factor
    elif isinstance(norm, BatchNorm):  # in evaluation an affine map
        kind = NormKind.AFFINE
        weight = norm.weight.double() * (norm.running_variance.double() + norm.eps).rsqrt()
        bias = norm.bias.double() - norm.running_mean.double() * weight
        weight = weight * stream
    else:
        kind, bias = NormKind.LAYER, norm.bias
    if scale != 1.0:
        weight, bias = weight.float() * scale, None if bias is None else bias.float() * scale
    # as if x were what it is to be multiplied to
    eps = float(norm.eps or 0.0) / stream**2
    emit_norms(program, x, y, weight.numel(), kind=kind, weight=weight, bias=bias, eps=eps, wait=wait)
    return y


def emit_norms(
    program: Program,
    x: Place,
    y: Place,
    width: int,
    *,
    weight: Tensor | None,
    eps: float,
    n_groups: int = 1,
    kind: NormKind = NormKind.RMS,
    bias: Tensor | None = None,
    gate: Place | None = None,
    gate_kind: ActivationKind = ActivationKind.SILU,
    wait: bool = False,
) -> None:
    """y = norm(x), each of the groups normed by itself, times SiLU(gate) or sigmoid(gate) behind it."""
    norm = Norm(
        kind=kind,
        width=width,
        n_groups=n_groups,
        epsilon=float(eps),
        weight=weight,
        bias=bias,
        input=x,
        output=y,
        gate=gate,
        gate_kind=gate_kind,
    )
    program.emit(norm, wait=wait)


def emit_scale(program: Program, scale: float, x: Place, width: int) -> None:
    """x *= scale"""
    if scale == 1.0:
        return
    emit_affine(program, x, x, width, torch.full((width,), scale), torch.zeros(width), wait=True)


def emit_affine(
    program: Program,
    x: Place,
    y: Place,
    width: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    wait: bool = False,
) -> None:
    """y = weight x + bias, number by number; without these a copy."""
    emit_norms(program, x, y, width, kind=NormKind.AFFINE, weight=weight, bias=bias, eps=0.0, wait=wait)


def emit_map(
    program: Program, map: nn.Linear | Adapted, x: Place, y: Place, *, scales: Tensor | None = None, wait: bool
) -> None:
    """y = scales map(x)"""
    if not isinstance(map, Adapted):
        program.linear(map.weight, map.bias, x, y, scales=scales, wait=wait)
        return
    rank = map.down.out_features // len(map.ups)
    low = program.buffer("low", map.down.out_features)
    program.linear(map.down.weight, None, x, low, wait=False)
    program.linear(map.base.weight, map.base.bias, x, y, scales=scales, wait=True)
    first = 0
    for number, up in enumerate(map.ups):
        assert isinstance(up, nn.Linear)
        n, last = up.out_features, number == len(map.ups) - 1
        own = None if scales is None else scales[first : first + n]
        part = low.after(number * rank)
        program.linear(up.weight, None, part, y.after(first), scales=own, add=True, wait=wait and last)
        first += n


def emit_mlp(program: Program, mlp: MLP, x: Place, residual: Place) -> None:
    """residual += mlp(x)"""
    config, (d_model, d_hidden) = mlp.config, mlp.out_proj.weight.shape
    hidden = program.buffer("hidden", d_hidden * (1 + config.gated))
    into = out = None
    if config.gate_scale != 1.0:
        into = torch.cat([torch.full((d_hidden,), config.gate_scale), torch.ones(d_hidden * config.gated)])
    if config.output_scale != 1.0:
        out = torch.full((d_model,), config.output_scale)
    # Without a gate a thread's share of the activation is what it has projected
    emit_map(program, mlp.in_proj, x, hidden, scales=into, wait=config.gated or isinstance(mlp.in_proj, Adapted))
    kind = ActivationKind[config.activation.upper()]
    activation = Activation(kind=kind, width=d_hidden, gated=config.gated, x=hidden)
    program.emit(activation, wait=True)
    program.linear(mlp.out_proj.weight, mlp.out_proj.bias, hidden, residual, add=True, scales=out, wait=True)


def emit_cleared(program: Program, name: str, width: int) -> Place:
    """A buffer of zeros, for what adds itself to a residual stream. Whoever adds shares the columns as is done here."""
    x = program.buffer(name, width)
    program.emit(Clear(width=width, x=x))
    return x


def emit_add(
    program: Program, x: Place, by: Place, width: int, *, scale: float = 1.0, gate: Place | None = None
) -> None:
    """x += scale by, times sigmoid(gate) if there is one."""
    program.emit(Add(width=width, scale=float(scale), x=x, by=by, gate=gate), wait=True)


def emit_normed_output(program: Program, x: Place, out_proj: nn.Linear, residual: Place, **norm: Any) -> None:
    """residual += W norm(x), with what else :func:`emit_norms` takes."""
    normed = program.buffer("mixed", out_proj.in_features, local=True)
    emit_norms(program, x, normed, out_proj.in_features, **norm)
    program.linear(out_proj.weight, out_proj.bias, normed, residual, add=True, wait=True)


def emit_units(program: Program, x: Place, y: Place, n_heads: int, d_head: int, eps: float) -> None:
    """y = x / sqrt(|x|^2 + eps), each head by itself."""
    eps /= d_head  # the mean of the squares is a d_head-th of their sum
    weight = torch.full((n_heads * d_head,), d_head**-0.5)
    emit_norms(program, x, y, n_heads * d_head, weight=weight, eps=eps, n_groups=n_heads)


def emit_convolution(
    program: Program, convolution: ShortConvolution, x: Place, state: Slot, *, wait: bool = True
) -> None:
    """In place, SiLU included if it has that."""
    (width, n_taps), silu = convolution.weight.shape, convolution.activation == "silu"
    taps, bias = convolution.weight.T, convolution.bias
    program.emit(Convolution(width=width, n_taps=n_taps, taps=taps, bias=bias, x=x, state=state, silu=silu), wait=wait)
