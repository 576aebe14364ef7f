"""How each layer of a model takes a step on a GPU: a Mamba-2 block by three kernels, any other by its modules.

The kernels (statewise/kernels/step) write over a layer's state. Only a step that every row takes part in, and that no
document begins with, goes this way: :class:`~statewise.decoding.static.StaticRun` has the modules for the others, and
holds the first step by kernels against theirs.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statewise.kernels import gpu
from statewise.kernels.exact import is_exact
from statewise.kernels.step import DTYPES, MULTIPLE
from statewise.kernels.step.pytorch import IntegerMatrix, Layer, Norm, Shift
from statewise.mixers.gated_norm import GatedRMSNorm
from statewise.mixers.mamba2 import Mamba2, Mamba2State
from statewise.mixers.projection import Linear
from statewise.mixers.rms_norm import RMSNorm
from statewise.models.block import Block
from statewise.models.head import Head
from statewise.models.integer_blocks import IntegerBlocks
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.models.quantised import QuantisedTensor
from statewise.operators.masks import NO_MASKS


class Step(NamedTuple):
    """One token of each row through a model. by_kernels: which layers; head_by_kernel: whether last norm and head"""

    model: LanguageModel
    by_kernels: tuple[bool, ...]
    head_by_kernel: bool

    def __call__(self, tokens: Tensor, state: LanguageModelState, *, logits: Tensor) -> LanguageModelState:
        """The state after the step: the same tensors, written over, of layers by kernels, and new ones of others.

        Shapes:  tokens: (rows, 1)   logits: (rows, vocabulary) float32, written over
        """
        model = self.model
        x = model._embed(tokens, state, NO_MASKS)
        after = []
        for block, by_kernels, layer in zip(model.blocks, self.by_kernels, state.layers, strict=True):
            if by_kernels:
                x = step_block(block, x, layer)
            else:
                x, layer = block(x, layer, masks=NO_MASKS)
            after.append(layer)
        if self.head_by_kernel:
            assert isinstance(model.norm, RMSNorm)
            gpu.module("step").norm_matvec(_row(x), _norm(model.norm), _stored(model.head.weight), out=logits)
            if model.head.cap is not None:
                logits.div_(model.head.cap).tanh_().mul_(model.head.cap)
        else:
            logits.copy_(model.head(model.behind_layers(x)[:, -1]))
        return LanguageModelState(state.position + 1, tuple(after))


def step_block(block: Block, x: Tensor, state: Mamba2State) -> Tensor:
    """x (rows, 1, d_model) behind a block that :func:`has_kernels`; its state is written over."""
    kernels, mixer, before = gpu.module("step"), block.mixer, block.mixer_norm
    assert isinstance(mixer, Mamba2)
    assert isinstance(before, RMSNorm)
    assert mixer.norm is not None
    row, first, last = _row(x), mixer.in_proj, mixer.out_proj
    projected = torch.empty(len(row), len(first.weight), dtype=row.dtype, device=row.device)
    kernels.norm_matvec(row, _norm(before), _stored(first.weight), first.bias, out=projected)
    convolution, dynamics = mixer.convolution, mixer.dynamics
    layer = Layer(
        convolution.weight,
        convolution.bias,
        dynamics.A_log,
        dynamics.dt_bias,
        dynamics.D,
        mixer.config.n_groups,
        mixer.config.dt_limit,
    )
    inputs = state.convolution.inputs
    u = kernels.mamba2_step(projected, inputs, state.ssm.h, layer)
    norm = Norm(mixer.norm.weight, mixer.norm.eps, mixer.norm.n_groups)
    shift = Shift(inputs, projected, mixer.d_inner)
    y = kernels.norm_matvec(u, norm, _stored(last.weight), last.bias, row, shift, out=torch.empty_like(row))
    x = y.unsqueeze(1)
    return x if block.mlp is None else block._through_mlp(x, x, NO_MASKS)


def _row(x: Tensor) -> Tensor:
    return x[:, -1].contiguous()


def _stored(weight: Tensor) -> Tensor | IntegerMatrix:
    """What a kernel reads of it."""
    return weight.blocks.matrix if isinstance(weight, QuantisedTensor) else weight  # type: ignore[attr-defined]


def _is_read(*weights: Tensor) -> bool:
    """Whether a kernel reads these as they are stored: not those that are quantised as a file has them."""
    return all(not isinstance(m, QuantisedTensor) or isinstance(m.blocks, IntegerBlocks) for m in weights)


def _norm(norm: RMSNorm) -> Norm:
    assert norm.eps is not None
    return Norm(norm.weight, norm.eps, offset=float(norm.offset))


def by_kernels(model: LanguageModel, state: LanguageModelState) -> Step | None:
    """The step of a model that has layers with kernels, where Triton is in force; else None.

    The kernels check themselves before their first use on a card. If they are wrong there, you get a warning.
    """
    rows, weight = len(state.position), model.embedding.weight
    if not (_in_force(weight) and rows and not model.training):
        return None
    if any(block.reads_values or block.mixer.gives_values or block.mixer.reads_embedding for block in model.blocks):
        return None  # layers that read what others leave
    kernels = gpu.module("step")
    if rows > kernels.MAX_ROWS:
        return None
    with_kernels = tuple(has_kernels(block, layer) for block, layer in zip(model.blocks, state.layers, strict=True))
    if not any(with_kernels):
        return None
    refusal = gpu.refusal_of("step", [weight], ())
    if refusal is not None:
        warnings.warn(f"decoding takes the layers' modules, not the kernels of a step: {refusal}", stacklevel=3)
        return None
    head = (
        type(model.norm) is RMSNorm
        and type(model.head) is Head
        and model.embedding_out is None
        and model.config.logit_scale == 1.0
        and _is_read(model.head.weight)
        and model.head.weight.is_contiguous()
        and kernels.holds(model.head.weight.shape[1])
    )
    return Step(model, with_kernels, head)


def _in_force(weight: Tensor) -> bool:
    """Whether Triton's kernels are asked for, and can run where the model is, in its numbers."""
    plain = not is_exact() and not torch.is_autocast_enabled(weight.device.type)
    return gpu.in_force(weight.device) and weight.dtype in DTYPES and plain


def has_kernels(block: Block, state: Any) -> bool:
    """Whether the mixer of a block steps by kernels: x + Mamba2(RMSNorm(x)) as published, with its gate before its
    norm, of parameters and a state that are stored as the kernels read them."""
    mixer, norm, config = block.mixer, block.mixer_norm, block.config
    if type(mixer) is not Mamba2 or type(norm) is not RMSNorm or config.placement != "pre":
        return False
    given, kernels = mixer.config, gpu.module("step")
    published = (
        given.norm
        and type(mixer.norm) is GatedRMSNorm
        and not given.norm_before_gate
        and not given.bidirectional
        and given.head_pattern == "multi_value"
        and given.projection_scales is None
        and config.branch_scale == 1.0
        and given.n_taps <= kernels.MAX_TAPS
        and kernels.holds(mixer.d_model)
        and kernels.holds(mixer.d_inner, mixer.norm.n_groups)
        and given.d_state <= kernels.MAX_STATES
        and given.d_state % MULTIPLE == 0
    )
    plain = all(type(part) is Linear for part in (mixer.in_proj, mixer.out_proj))  # no adapters
    plain = plain and _is_read(mixer.in_proj.weight, mixer.out_proj.weight)
    if not (published and plain and isinstance(state, Mamba2State)):
        return False
    dtype = mixer.in_proj.weight.dtype
    full = (*mixer.dynamics.parameters(), state.convolution.inputs, state.ssm.h)
    return (
        mixer.out_proj.weight.dtype == dtype
        and all(m.dtype == torch.float32 for m in full)
        and all(m.is_contiguous() for m in (*_parameters(block.mixer_norm, mixer), *full))
    )


def _parameters(*modules: nn.Module | None) -> list[Tensor]:
    return [m for module in modules if module is not None for m in module.parameters()]
