"""A step of a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.decoding.instructions import ExpertsIn, ExpertsOut, Route
from statewise.decoding.operands import BLOCK, ActivationKind, Place, RouterKind, Routes
from statewise.decoding.packing import pack, pack_experts
from statewise.decoding.parts import emit_add, emit_affine, emit_cleared, emit_mlp
from statewise.decoding.program import Program
from statewise.models.moe import ROUTERS, MoE, MoEConfig


def emit_moe(program: Program, moe: MoE, x: Place, residual: Place) -> None:
    """residual += moe(x). All tokens that choose an expert share one reading of it."""
    config, d_model = moe.config, moe.router.map.in_features
    if x == residual:  # which the experts write to while others still read it
        x = program.buffer("read", d_model, local=True)
        emit_affine(program, residual, x, d_model)
    read = x
    if moe.latent_in is not None:
        read = program.buffer("latent", moe.latent_in.out_features)
        program.linear(moe.latent_in.weight, moe.latent_in.bias, x, read, wait=False)
    scores = _emit_scores(program, moe, x)
    routes = _emit_route(program, config, moe.router.bias, scores)
    if moe.latent_out is None:
        _emit_experts(program, moe, read, residual, routes, add=True)
    else:
        made = program.buffer("made", moe.latent_out.in_features)
        _emit_experts(program, moe, read, made, routes, add=False)
        program.linear(moe.latent_out.weight, moe.latent_out.bias, made, residual, add=True, wait=True)
    if moe.shared is not None and moe.shared_gate is None:
        emit_mlp(program, moe.shared, x, residual)
    elif moe.shared is not None:
        shared = emit_cleared(program, "shared", d_model)
        emit_mlp(program, moe.shared, x, shared)
        emit_add(program, residual, shared, d_model, gate=scores.after(config.n_experts))


def _emit_scores(program: Program, moe: MoE, x: Place) -> Place:
    """Each expert's score and, behind them, the shared MLP's gate: in float32, also where other matrices are integers.
    No rounding that depends on the other rows may choose among experts."""
    router = moe.router.map.weight

    def rows() -> Tensor:
        gate = [] if moe.shared_gate is None else [moe.shared_gate.weight]
        return torch.cat([router, *gate]).float()

    packed = program.weights.kept(id(router), lambda: pack(rows(), "float32"))
    scores = program.buffer("scores", packed.n_rows)
    program.linear(packed, None, x, scores, alone=True, wait=True)
    return scores


def _emit_route(program: Program, config: MoEConfig, bias: Tensor | None, scores: Place) -> Routes:
    def local(name: str, width: int) -> Place:
        return program.buffer(name, width, local=True)

    n_experts, n_active = config.n_experts, config.n_active
    routes = Routes(
        n_experts, n_active, local("weights", n_active), local("tokens", n_active), local("begins", n_experts + 1)
    )
    route = Route(
        kind=RouterKind(ROUTERS.index(config.router)),
        n_groups=config.n_groups,
        n_groups_active=config.n_groups_active,
        normalize=config.normalize,
        smallest=float(config.normalize_eps),
        scale=float(config.route_scale),
        bias=bias,
        scores=scores,
        every=local("every", n_experts),
        asked=local("asked", n_experts),
        groups=local("groups", config.n_groups),
        chosen=local("chosen", 2 * n_active),
        routes=routes,
    )
    program.emit(route)
    return routes


def _emit_experts(program: Program, moe: MoE, x: Place, y: Place, routes: Routes, *, add: bool) -> None:
    """y = the chosen experts' sum, or y += it."""
    config, weights, experts = moe.config, program.weights, moe.experts
    d_hidden, turns = experts.out_proj.shape[2], 2 if config.gated else 1
    precision, group = weights.precision, weights.group
    into = weights.kept(id(experts.in_proj), lambda: pack_experts(experts.in_proj, precision, group, turns=turns))
    out = weights.kept(id(experts.out_proj), lambda: pack_experts(experts.out_proj, precision, group))
    stride = -(-d_hidden // BLOCK) * BLOCK
    hidden = program.buffer("experts_hidden", config.n_active * stride)
    first = ExpertsIn(
        weight=into.matrix(),
        d_hidden=d_hidden,
        kind=ActivationKind[config.activation.upper()],
        gated=config.gated,
        input=x,
        rounded=program.rounded(into),
        gathered=program.buffer("gathered", into.rounded_width or into.n_columns, local=True),
        output=hidden,
        stride=stride,
        sums=program.buffer("sums_of_experts", 2 * BLOCK, local=True),
        routes=routes,
    )
    program.emit(first, wait=True)
    second = ExpertsOut(
        weight=out.matrix(),
        input=hidden,
        stride=stride,
        rounded=program.rounded(out, config.n_active),
        rounded_stride=out.rounded_width,
        output=y,
        add=add,
        sums=program.buffer("sums", BLOCK, local=True),
        routes=routes,
    )
    program.emit(second, wait=True)
