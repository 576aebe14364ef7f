"""What each kind of layer does in a step, as instructions; and which layers there are none for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from statewise.decoding.program import LOGITS, Place, Program
from statewise.decoding.states import AttentionHistory, RecurrentState, StateTable
from statewise.mixers.attention import Attention
from statewise.mixers.base import Mixer
from statewise.mixers.h3 import H3
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.short_convolution import ShortConvolution
from statewise.models.batch_norm import BatchNorm
from statewise.models.block import Block
from statewise.models.language_model import LanguageModel
from statewise.models.mlp import MLP
from statewise.operators.causal_convolution import CausalConvolution
from statewise.operators.diagonal import DiagonalLTI

LOG2_E = math.log2(math.e)
NORMS = ("rms", "layer", "affine")  # as decode_pointwise.h counts them
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


def refusal(model: nn.Module) -> str | None:
    """Why a model has no step in C, whatever the machine; None if it has one."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} writes no tokens"
    for i, block in enumerate(model.blocks):
        if type(block.mixer) not in MIXERS:
            return f"layers[{i}] is a {type(block.mixer).__name__}, and there is a step for {_named(MIXERS)}"
        reason = getattr(block.mixer, "config", None) and _refused_option(block.mixer)
        if reason:
            return f"layers[{i}] {reason}"
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.bfloat16):
            return f"{name} is {parameter.dtype}, and the step computes in float32"
        if parameter.device.type != "cpu":
            return f"{name} is on {parameter.device.type}, and the step is for the CPU"
    return None


def emit_model(program: Program, model: LanguageModel) -> tuple[list[StateTable], int, int | None]:
    """The whole step. Returns each layer's state, how many instructions there are before the head's, and which entry of
    the table of states has the address of the model's positions, if it has a table of them."""
    d_model = model.config.d_model
    x = program.buffer("residual", d_model)
    positions = None if model.positions is None else program.state(1)
    program.emit("embed", program.weights.pack(model.embedding.weight), x, wait=positions is None)
    if model.positions is not None:  # a thread's share of the columns is what it has embedded
        program.emit("add_row", d_model, model.positions.weight, positions, x, wait=True)
    states = [_emit_block(program, block, x) for block in model.blocks]
    n_body = len(program)
    normed = _emit_norm(program, model.norm, x, program.buffer("normed", d_model, local=True))
    program.linear(model.head.weight, model.head.bias, normed, Place(LOGITS), wait=False)
    return states, n_body, positions


def _emit_block(program: Program, block: Block, x: Place) -> StateTable:
    """x += mixer(norm(x)), then the MLP alike; or with the norms after the sums."""
    post = block.config.placement == "post"
    local = program.buffer("normed", block.d_model, local=True)
    read = x if post else _emit_norm(program, block.mixer_norm, x, local)
    state = MIXERS[type(block.mixer)](program, block.mixer, read, x)
    if post:
        _emit_norm(program, block.mixer_norm, x, x, wait=True)
    if block.mlp is not None and block.mlp_norm is not None:
        _emit_mlp(program, block.mlp, x if post else _emit_norm(program, block.mlp_norm, x, local), x)
        if post:
            _emit_norm(program, block.mlp_norm, x, x, wait=True)
    return state


def _emit_norm(program: Program, norm: nn.Module, x: Place, y: Place, *, wait: bool = False) -> Place:
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    eps = float(getattr(norm, "eps", None) or 0.0)
    kind = "layer" if isinstance(norm, nn.LayerNorm) else "rms"
    if isinstance(norm, BatchNorm):  # in evaluation an affine map
        kind = "affine"
        scale = norm.weight.double() * (norm.running_variance.double() + norm.eps).rsqrt()
        bias = (norm.bias.double() - norm.running_mean.double() * scale).float()
        weight = scale.float()
    width = weight.numel() if weight is not None else 0
    program.emit("norm", NORMS.index(kind), width, 1, eps, weight, bias, x, y, Place(0), False, wait=wait)
    return y


def _emit_mlp(program: Program, mlp: MLP, x: Place, residual: Place) -> None:
    gated = mlp.config.gated
    d_hidden = mlp.out_proj.in_features
    hidden = program.buffer("hidden", mlp.in_proj.out_features)
    # Without a gate a thread's share of the activation is what it has projected
    program.linear(mlp.in_proj.weight, mlp.in_proj.bias, x, hidden, wait=gated)
    program.emit("activation", ACTIVATIONS.index(mlp.config.activation), d_hidden, gated, hidden, wait=True)
    program.linear(mlp.out_proj.weight, mlp.out_proj.bias, hidden, residual, add=True, wait=True)


def _emit_convolution(program: Program, convolution: ShortConvolution, x: Place, slot: int) -> None:
    """In place, SiLU included."""
    width, n_taps = convolution.weight.shape
    taps = convolution.weight.detach().float().T
    program.emit("convolution", width, n_taps, taps, convolution.bias, x, slot, True, wait=True)


def _emit_mamba(program: Program, mixer: Mixer, x: Place, residual: Place) -> StateTable:
    assert isinstance(mixer, Mamba)
    config, width = mixer.config, mixer.d_inner
    state = RecurrentState(program.state(4))
    projected = program.buffer("projected", 2 * width)
    selected = program.buffer("selected", mixer.dt_rank + 2 * config.d_state)
    dt = program.buffer("dt", width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, projected, wait=True)
    _emit_convolution(program, mixer.convolution, projected, state.slot)
    program.linear(mixer.x_proj.weight, mixer.x_proj.bias, projected, selected, wait=True)
    parts = [selected, selected.after(mixer.dt_rank), selected.after(mixer.dt_rank + config.d_state)]  # dt, B, C
    if config.norm_dt_b_c:  # every thread norms all of it for itself
        kind, widths = NORMS.index("rms"), mixer.sizes
        given, normed = parts, program.buffer("normed_selected", sum(widths), local=True)
        parts = [normed, normed.after(widths[0]), normed.after(widths[0] + widths[1])]
        for width_, before, after in zip(widths, given, parts):
            program.emit("norm", kind, width_, 1, config.norm_eps, None, None, before, after, Place(0), False)
    # A thread's share of dt is its share of the channels: it need not wait
    program.linear(mixer.dt_proj.weight, mixer.dt_proj.bias, parts[0], dt, wait=False)
    dynamics = mixer.dynamics
    program.emit(
        "selective",
        width,
        config.d_state,
        config.method == "zoh",
        dynamics.A_log.detach().double().exp().mul(-LOG2_E).float(),
        dynamics.D,
        dynamics.dt_bias,
        projected,
        projected.after(width),
        dt,
        parts[1],
        parts[2],
        projected,
        state.slot + 2,
        wait=True,
    )
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, projected, residual, add=True, wait=True)
    return state


def _emit_mamba2(program: Program, mixer: Mixer, x: Place, residual: Place) -> StateTable:
    assert isinstance(mixer, Mamba2)
    config, width = mixer.config, mixer.d_inner
    d_groups = config.n_groups * config.d_state
    state = RecurrentState(program.state(4))
    projected = program.buffer("projected", sum(mixer.sizes))
    values = projected.after(width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, projected, wait=True)
    _emit_convolution(program, mixer.convolution, values, state.slot)
    dynamics, gate_first = mixer.dynamics, not config.norm_before_gate
    program.emit(
        "ssd",
        mixer.n_heads,
        config.d_head,
        config.d_state,
        mixer.n_heads // config.n_groups,
        dynamics.A_log.detach().double().exp().mul(-LOG2_E).float(),
        dynamics.D,
        dynamics.dt_bias,
        float(config.dt_limit[0]),
        float(config.dt_limit[1]),
        values,
        projected,
        projected.after(mixer.sizes[0] + mixer.sizes[1]),
        values.after(width),
        values.after(width + d_groups),
        values,
        gate_first,
        state.slot + 2,
        wait=True,
    )
    normed = program.buffer("mixed", width, local=True)
    norm = mixer.norm
    kind = NORMS.index("rms")
    gate = Place(0) if gate_first else projected
    program.emit("norm", kind, width, norm.n_groups, norm.eps, norm.weight, None, values, normed, gate, not gate_first)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, normed, residual, add=True, wait=True)
    return state


def _emit_h3(program: Program, mixer: Mixer, x: Place, residual: Place) -> StateTable:
    assert isinstance(mixer, H3)
    width, d_head = mixer.d_model, mixer.config.d_head
    shift, diagonal = mixer.operators
    assert isinstance(shift, CausalConvolution)
    assert isinstance(diagonal, DiagonalLTI)
    state = RecurrentState(program.state(4))
    query, recalled = program.buffer("projected", 3 * width), program.buffer("mixed", width)
    key, value = query.after(width), query.after(2 * width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, query, wait=True)
    program.emit("convolution", width, shift.taps.shape[1], shift.taps.T, None, key, state.slot, False, wait=True)
    A, B, C = diagonal.A, torch.view_as_real(diagonal.B), torch.view_as_real(2 * diagonal.C.conj())
    same, crossed = torch.stack([A.real, A.real], -1), torch.stack([-A.imag, A.imag], -1)
    tables = [table.flatten(-2) for table in (same, crossed, B, C)]
    n_state = tables[0].shape[1]
    places = (query, key, value, recalled, state.slot + 2)
    program.emit("diagonal", mixer.n_heads, d_head, n_state, *tables, diagonal.D, *places, wait=True)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, recalled, residual, add=True, wait=True)
    return state


def _emit_attention(program: Program, mixer: Mixer, x: Place, residual: Place) -> StateTable:
    assert isinstance(mixer, Attention)
    n_heads, n_kv_heads, d_head = mixer.n_heads, mixer.n_kv_heads, mixer.d_head
    state = AttentionHistory(program.state(AttentionHistory.N_ENTRIES), mixer)
    if mixer.positions is not None:
        local = program.buffer("placed", mixer.d_model, local=True)
        program.emit("norm", NORMS.index("affine"), mixer.d_model, 1, 0.0, None, None, x, local, Place(0), False)
        program.emit("add_row", mixer.d_model, mixer.positions.weight, state.slot + 6, local)
        x = local
    projected = program.buffer("projected", mixer.in_proj.out_features)
    attended = program.buffer("attended", n_heads * d_head)
    n_angles = mixer.d_rotary // 2
    angles = program.buffer("angles", 2 * n_angles, local=True)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, projected, wait=True)
    if n_angles:
        frequencies = mixer.config.rotary_base ** (
            torch.arange(n_angles, dtype=torch.float64, device="cpu") * (-1.0 / n_angles)
        )
        program.emit("angles", n_angles, frequencies, angles, state.slot)
    program.emit(
        "attention",
        n_heads,
        n_kv_heads,
        d_head,
        n_angles,
        mixer.config.window or 0,
        LOG2_E / math.sqrt(d_head),
        projected,
        angles,
        attended,
        program.buffer("weighted", d_head, local=True),
        state.slot,
        wait=True,
    )
    program.emit("advance", state.slot)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, attended, residual, add=True, wait=True)
    return state


def _refused_option(mixer: nn.Module) -> str | None:
    if isinstance(mixer, Mamba) and mixer.config.is_complex:
        return "is a Mamba with complex A, and the step is for real A"
    if isinstance(mixer, Attention) and mixer.convolution is not None:
        return "is an Attention with n_taps, a convolution of queries, keys and values, which the step does not have"
    return None


def _named(classes: Mapping[type, Any]) -> str:
    return ", ".join(cls.__name__ for cls in classes)


Emit = Callable[[Program, Mixer, Place, Place], StateTable]
MIXERS: Mapping[type, Emit] = {Mamba: _emit_mamba, Mamba2: _emit_mamba2, Attention: _emit_attention, H3: _emit_h3}


def matrices(model: LanguageModel) -> list[Tensor]:
    """The weights that are packed, each once: those of embedding, head, projections and MLPs."""
    linear = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    return list({id(weight): weight for weight in (model.embedding.weight, *linear)}.values())
