"""A layer of a model: a mixer and maybe an MLP, each with a residual connection and a norm before or after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.configuration.types import Finite, Fraction, NonEmpty, NonNegative, OneOf
from statewise.errors import ConfigError
from statewise.mixers.base import Layer, Mixer, MixerConfig
from statewise.mixers.dropout import build_dropout
from statewise.mixers.no_mixer import NoMixer
from statewise.mixers.rms_norm import RMSNorm
from statewise.models.batch_norm import BatchNorm
from statewise.models.mlp import MLP, MLPConfig
from statewise.models.moe import MoE, MoEConfig
from statewise.operators.masks import Masks

NORMS = ("rms", "rms_offset", "layer")  # those that act on each step alone
BLOCK_NORMS = (*NORMS, "batch")
PLACEMENTS = ("pre", "post", "after", "parallel")


def build_norm(kind: str, d_model: int, eps: float) -> RMSNorm | nn.LayerNorm:
    """RMSNorm or LayerNorm over the last axis, both with learned weights."""
    if kind == "layer":
        return nn.LayerNorm(d_model, eps=eps)
    return RMSNorm(d_model, eps=eps, offset=kind == "rms_offset")


def build_any_norm(kind: str, d_model: int, eps: float) -> RMSNorm | nn.LayerNorm | BatchNorm:
    """One of ``BLOCK_NORMS``; call it by :func:`apply_norm`."""
    return BatchNorm(d_model, eps=eps) if kind == "batch" else build_norm(kind, d_model, eps)


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """One layer. A bare mixer config stands for a block without an MLP (see :func:`as_block`).

    mixer:     None: the block is an MLP alone, with one norm and no state
    mlp:       one MLP, or a mixture of many; None: none
    norm:      "rms", "rms_offset" (its weight stored less 1), "layer" or "batch"
               (:class:`~statewise.models.batch_norm.BatchNorm`)
    placement: "pre": x + f(norm(x)); "post": norm(x + f(x)), "after": x + norm(f(x)); for the mixer and then
               for the MLP;
               "parallel": x + mixer(norm(x)) + mlp(norm'(x)), both of one x (Wang & Komatsuzaki 2021, GPT-J; GPT-NeoX,
               arXiv:2204.06745, sec. 2.1)
    dropout:   of each branch, before it joins the residual stream
    branch_scale: by which each branch is multiplied before it joins the residual stream
    tied_dropout: dropout takes whole features, at all steps alike: :class:`~statewise.mixers.dropout.TiedDropout`
    """

    mixer: MixerConfig | None
    mlp: MLPConfig | MoEConfig | None = None
    norm: Annotated[str, OneOf(BLOCK_NORMS)] = "rms"
    norm_eps: NonNegative = 1e-5
    dropout: Fraction = 0.0
    tied_dropout: bool = False
    placement: Annotated[str, OneOf(PLACEMENTS)] = "pre"
    branch_scale: Finite = 1.0

    def __post_init__(self) -> None:
        if self.mixer is None and (self.mlp is None or self.placement == "parallel"):
            raise ConfigError(
                "BlockConfig.mixer=None is for a block of an MLP alone; set mlp, and no parallel placement"
            )
        if self.placement == "parallel" and self.mlp is None:
            raise ConfigError('BlockConfig.placement="parallel" without an mlp is "pre"; set mlp, or use "pre"')

    @property
    def n_branches(self) -> int:
        """How many branches write into the residual stream."""
        return (self.mixer is not None) + (self.mlp is not None)

    def build(self, d_model: int) -> Block:
        return Block(d_model, self)


Layers = NonEmpty[BlockConfig | MixerConfig]


def as_block(layer: BlockConfig | MixerConfig) -> BlockConfig:
    """A bare mixer config becomes a pre-norm block without an MLP."""
    return layer if isinstance(layer, BlockConfig) else BlockConfig(mixer=layer)


class Block(Layer):
    """x + f(norm(x)), or with placement "post" norm(x + f(x)), or "after" x + norm(f(x)), for the mixer and then for
    the MLP, where there are; or for both of the same x.

    Calls and state are its mixer's. Without one its ``mixer`` is a NoMixer, whose state is empty.
    """

    mixer: Mixer

    def __init__(self, d_model: int, config: BlockConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        mixer = NoMixer(d_model) if config.mixer is None else config.mixer.build(d_model)
        if mixer.has_norm and config.placement != "pre":
            raise ConfigError(f'{type(config.mixer).__name__} norms what it reads; use BlockConfig.placement="pre"')
        plain = config.mixer is None or mixer.has_norm
        self.mixer_norm = None if plain else build_any_norm(config.norm, d_model, config.norm_eps)
        self.mixer = mixer
        self.mlp_norm = None if config.mlp is None else build_any_norm(config.norm, d_model, config.norm_eps)
        self.mlp: MLP | MoE | None = None if config.mlp is None else config.mlp.build(d_model)
        self.dropout = build_dropout(config.dropout, tied=config.tied_dropout)

    @property
    def reads_values(self) -> bool:
        """Whether a mixer of it reads the values of a layer before."""
        return any(part.reads_values for part in self.mixer.parts())

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        for norm in (self.mixer_norm, self.mlp_norm):
            if norm is not None:
                norm.reset_parameters()
        self.mixer.reset_parameters(residual_scale)
        if self.mlp is not None:
            self.mlp.reset_parameters(residual_scale)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        return self.mixer.initial_state(batch, device=device, dtype=dtype)

    def mix(self, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        if isinstance(self.mixer, NoMixer):
            _, state = self.mixer(x, state, masks=masks)  # which looks at the state
            return self._through_mlp(x, x, masks), state
        before = x
        y, state = self.mixer(self._enter(self.mixer_norm, x, masks), state, masks=masks)
        x = self._leave(x, y, self.mixer_norm, masks)
        if self.mlp is not None:
            x = self._through_mlp(x, before if self.config.placement == "parallel" else x, masks)
        return x, state

    def _through_mlp(self, x: Tensor, read: Tensor, masks: Masks) -> Tensor:
        """x with what the MLP makes of ``read``."""
        assert self.mlp is not None
        entered = self._enter(self.mlp_norm, read, masks)
        y = self.mlp(entered, masks) if isinstance(self.mlp, MoE) else self.mlp(entered)
        return self._leave(x, y, self.mlp_norm, masks)

    def _enter(self, norm: nn.Module | None, x: Tensor, masks: Masks) -> Tensor:
        """What a branch reads of the residual stream."""
        return x if norm is None or self.config.placement in ("post", "after") else apply_norm(norm, x, masks)

    def _leave(self, x: Tensor, y: Tensor, norm: nn.Module | None, masks: Masks) -> Tensor:
        """The residual stream with what a branch made."""
        if norm is not None and self.config.placement == "after":
            y = apply_norm(norm, y, masks)
        if self.config.branch_scale != 1.0:
            y = y * self.config.branch_scale
        x = x + self.dropout(y)
        return apply_norm(norm, x, masks) if norm is not None and self.config.placement == "post" else x


def apply_norm(norm: nn.Module, x: Tensor, masks: Masks) -> Tensor:
    """A norm of either kind: over each step alone, or over the real steps of the batch."""
    normed: Tensor = norm(x, masks=masks) if isinstance(norm, BatchNorm) else norm(x)
    return normed
