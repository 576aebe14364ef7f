"""A model's whole step as instructions, layer by layer; and which models there are none for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewise.decoding.experts import emit_moe
from statewise.decoding.instructions import AddRow, Cap, Embed
from statewise.decoding.mixers import MIXERS, mixer_refusal
from statewise.decoding.mixers.shared_transformer import token_embedding
from statewise.decoding.operands import LOGITS, Place, Slot
from statewise.decoding.parts import emit_add, emit_affine, emit_cleared, emit_mlp, emit_norm, emit_scale
from statewise.decoding.program import Program
from statewise.decoding.refused import block_refusal, model_refusal
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.no_mixer import NoMixer
from statewise.models.block import Block
from statewise.models.language_model import LanguageModel
from statewise.models.moe import MoE


def layer_refusal(block: Block) -> str | None:
    """Why a layer has no step in C, as the end of a sentence; None if it has one."""
    reason = block_refusal(block.config)
    if reason is not None or isinstance(block.mixer, NoMixer):
        return reason
    return mixer_refusal(block.mixer)


def parts_refusal(model: LanguageModel) -> str | None:
    """Why a model has no step in C for what it is built of, wherever and in whatever dtype; None if it has one."""
    reason = model_refusal(model.config)
    if reason is not None:
        return reason
    reasons = ((i, layer_refusal(block)) for i, block in enumerate(model.blocks))
    return next((f"layers[{i}] {reason}" for i, reason in reasons if reason is not None), None)


def refusal(model: nn.Module) -> str | None:
    """Why a model has no step in C, whatever the machine; None if it has one."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} does not generate tokens"
    reason = parts_refusal(model)
    if reason is not None:
        return reason
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.bfloat16):
            return f"{name} is {parameter.dtype}, but the step computes in float32"
        if parameter.device.type != "cpu":
            return f"{name} is on {parameter.device.type}, but the step runs on the CPU"
    return None


def emit_model(program: Program, model: LanguageModel) -> tuple[list[StateTable], int, Slot | None]:
    """The whole step. Returns each layer's state, how many instructions there are before the head's, and which entry of
    the table of states has the address of the model's positions, if it has a table of them."""
    d_model, config = model.config.d_model, model.config
    x = program.buffer("residual", d_model)
    # The residual stream is kept divided by what all branches are multiplied by: they then add themselves as they are
    stream = config.blocks[0].branch_scale
    positions = None if model.positions is None else program.state(1)
    apart = positions is not None or model.embedding_norm is not None  # the scale of the embedding is a step of its own
    # With positions nobody waits: a thread's share of the columns is what it has embedded
    embedding, d_embedding = program.matrix(model.embedding.weight), model.embedding.embedding_dim
    if model.embedding_in is None:
        wait = positions is None or model.embedding_norm is not None or config.embedding_scale != 1.0
        program.emit(Embed(weight=embedding, output=x), wait=wait)
    else:
        embedded = program.buffer("embedded", d_embedding)
        program.emit(Embed(weight=embedding, output=embedded), wait=True)
        program.linear(model.embedding_in.weight, None, embedded, x, wait=True)
    if apart:
        emit_scale(program, config.embedding_scale, x, d_model)
    if model.embedding_norm is not None:
        emit_norm(program, model.embedding_norm, x, x, wait=True)
    if model.positions is not None and positions is not None:
        table = model.positions.weight[model.positions.offset :]
        program.emit(AddRow(width=d_model, table=table, positions=positions, x=x), wait=True)
    emit_scale(program, (1.0 if apart else config.embedding_scale) / stream, x, d_model)
    if any(block.mixer.reads_embedding for block in model.blocks):
        kept = token_embedding(program, d_model)
        emit_affine(program, x, kept, d_model, torch.full((d_model,), stream), wait=True)
    states = [_emit_block(program, block, x, stream) for block in model.blocks]
    n_body = len(program)
    if model.norm is not None:
        normed = program.buffer("normed", d_model, local=True)
        x = emit_norm(program, model.norm, x, normed, stream=stream, scale=config.logit_scale)
    if model.embedding_out is not None:
        narrow = program.buffer("embedded", d_embedding)
        program.linear(model.embedding_out.weight, None, x, narrow, wait=True)
        x = narrow
    program.linear(model.head.weight, model.head.bias, x, Place(LOGITS), wait=False)
    if model.head.cap is not None:  # a thread's share of the logits is what it has made
        program.emit(Cap(width=config.vocab_size, cap=float(model.head.cap), x=Place(LOGITS)))
    return states, n_body, positions


def _emit_block(program: Program, block: Block, x: Place, stream: float) -> StateTable:
    """x += mixer(norm(x)), then the MLP alike; or with the norms after the sums, or after the branches; or the MLP of x
    before the mixer; with ``stream`` times x in place of x, and the branches as many times as large."""
    state: StateTable = RecurrentState(program, n_leaves=0)
    beside = None
    if block.config.placement == "parallel" and block.mlp_norm is not None:
        beside = program.buffer("beside_normed", block.d_model, local=True)
    if not isinstance(block.mixer, NoMixer):
        branch = _Branch(program, block, block.mixer_norm, x, stream)
        read = branch.enter()
        if beside is not None and block.mlp_norm is not None:
            emit_norm(program, block.mlp_norm, x, beside, stream=stream)
        state = MIXERS[type(block.mixer)].emit(program, block.mixer, read, branch.residual)
        branch.leave()
    if block.mlp is not None:
        branch = _Branch(program, block, block.mlp_norm, x, stream)
        read = beside or branch.enter()
        emit = emit_moe if isinstance(block.mlp, MoE) else emit_mlp
        emit(program, block.mlp, read, branch.residual)  # type: ignore[arg-type]
        branch.leave()
    return state


class _Branch:
    """What a branch reads of the residual stream, and how it joins it."""

    def __init__(self, program: Program, block: Block, norm: nn.Module | None, x: Place, stream: float) -> None:
        self.program, self.placement, self.width = program, block.config.placement, block.d_model
        self.norm, self.x, self.stream, self.residual = norm, x, stream, x

    def enter(self) -> Place:
        local = self.program.buffer("normed", self.width, local=True)
        if self.placement == "after":
            self.residual = emit_cleared(self.program, "branch", self.width)
        if self.norm is not None and self.placement in ("pre", "parallel"):
            return emit_norm(self.program, self.norm, self.x, local, stream=self.stream)  # type: ignore[arg-type]
        if self.stream == 1.0:
            return self.x
        emit_affine(self.program, self.x, local, self.width, torch.full((self.width,), self.stream))
        return local

    def leave(self) -> None:
        if self.placement == "post":
            emit_norm(self.program, self.norm, self.x, self.x, wait=True)  # type: ignore[arg-type]
        elif self.placement == "after":
            local = self.program.buffer("normed", self.width, local=True)
            emit_norm(self.program, self.norm, self.residual, local)  # type: ignore[arg-type]
            emit_add(self.program, self.x, local, self.width)


def matrices(model: LanguageModel) -> list[Tensor]:
    """The weights that are packed, each once: those of embedding, head, projections and MLPs, and of experts, which
    have a first axis more. What chooses among experts, and gates them, stays in float32."""
    found: list[Tensor] = [model.embedding.weight]
    routers: set[nn.Module | None] = set()
    for module in model.modules():
        if isinstance(module, MoE):
            found += [module.experts.in_proj, module.experts.out_proj]
            routers |= {module.router.map, module.shared_gate}
        elif isinstance(module, nn.Linear) and module not in routers:  # a module comes before those that it holds
            found.append(module.weight)
    return list({id(weight): weight for weight in found}.values())
