"""What a classifier and a regressor share: an embedding of numbers or tokens, any tuple of layers, pooling, a head."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, NonNegative, OneOf
from statewise.errors import ConfigError, InputError
from statewise.kernels.batching import whole
from statewise.mixers.base import check_weight
from statewise.mixers.projection import Linear
from statewise.models.base import Model, ModelConfig, advance, build_blocks, check_device, check_layers
from statewise.models.block import BLOCK_NORMS, NORMS, BlockConfig, Layers, apply_norm, as_block, build_any_norm
from statewise.models.frames import check_frame_state, frames, initial_frame_state
from statewise.models.missing import read_missing
from statewise.models.pooling import POOLINGS, build_pooling
from statewise.models.raw_input import InputConfig, RawInput, require_fits
from statewise.models.text_input import TextInputConfig
from statewise.models.text_input import require_fits as require_text_fits
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import COUNT, check_state


class SequenceState(NamedTuple):
    """position: (batch,) int64, steps read since the row's sequence began; layers: one state per layer; pooling: what
    the pooling has summed up, and frames: the samples of an unfinished frame; empty tuples for a model without them.
    """

    position: Tensor
    layers: tuple[Any, ...]
    pooling: Any
    frames: Any = ()


@dataclass(frozen=True, kw_only=True)
class SequenceModelConfig(ModelConfig):
    """The fields that every model of whole sequences has. Exactly one of ``d_input`` and ``vocab_size`` is given.

    pooling: "mean", "last" or "attention" over the steps of a sequence; None: an output for every step.
    norm: "rms", "layer" or "batch", after the last layer; None: none. "auto": none where the last block is post-norm,
    whose output is normed already; else the last block's norm, or "layer" where that is batch norm.
    frame_length: the layers read this many steps side by side as one, which is cheaper by about that factor. Steps
    after the last whole frame wait for the next call (in the state), or are not read. Needs a pooling.
    input: what the model does to raw numbers before it reads them; None: x is given as the first layer reads it.
    text: how texts become the tokens that the model reads; None: not known, or no texts.
    """

    d_model: Count
    layers: Layers
    d_input: Count | None = None  # numbers a step
    vocab_size: Count | None = None  # or: one token a step
    pooling: Annotated[str, OneOf(POOLINGS)] | None = "mean"
    norm: Annotated[str, OneOf(("auto", *BLOCK_NORMS))] | None = "auto"
    norm_eps: NonNegative = 1e-5
    dropout: Fraction = 0.0  # of the features before the head
    frame_length: Count = 1
    input: InputConfig | None = None
    text: TextInputConfig | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.d_input is None) == (self.vocab_size is None):
            raise ConfigError(
                f"{name} has d_input={self.d_input} and vocab_size={self.vocab_size}; give exactly one: "
                "d_input for sequences of numbers, vocab_size for tokens"
            )
        if self.frame_length > 1 and (self.pooling is None or self.d_input is None):
            raise ConfigError(
                f"{name}.frame_length={self.frame_length} reads several steps of numbers as one, so there is no output "
                "for each of them; set a pooling and d_input, or frame_length=1"
            )
        if self.input is not None:
            require_fits(name, self.input, self.d_input, self.pooling)
        if self.text is not None:
            require_text_fits(name, self.text, self.vocab_size)

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """The layers, with bare mixer configs made into blocks."""
        return tuple(as_block(layer) for layer in self.layers)

    @property
    def final_norm(self) -> str | None:
        """The norm after the last layer, with "auto" resolved."""
        if self.norm != "auto":
            return self.norm
        last = self.blocks[-1]
        if last.placement == "post":
            return None
        return last.norm if last.norm in NORMS else "layer"

    def in_full(self) -> SequenceModelConfig:
        return replace(self, layers=self.blocks, norm=self.final_norm)

    @property
    @abc.abstractmethod
    def n_outputs(self) -> int:
        """How wide the head is."""


class SequenceModel(Model, abc.ABC):
    """x -> outputs (batch, n_outputs), or (batch, length, n_outputs) without pooling; and the state if one was given.

    Shapes:  x: (batch, length, d_input) floating, or (batch, length) tokens; with an ``input`` in the config any real
             dtype, as the data were stored
             lengths: (batch,) integers, the length of each right-padded row
             starts:  (batch, length) bool, where a packed sequence begins; only for a model without pooling
    State:   :class:`SequenceState`. It includes the pooling: each call's outputs are those of all that was read so
             far, and after the last chunk of a long signal they are those of the whole signal.
    Padding: may hold anything, NaN too. Without pooling, outputs at padding mean nothing.
    Missing: if all layers are filters, a step with NaN is a step without an observation; otherwise it is an error.
    Errors:  InputError, one line, for a wrong shape, dtype, id, state or length; for a row without a step, or without
             a whole frame, if there is a pooling and no state; for a state, if the ``input`` needs whole rows.
    """

    config: SequenceModelConfig

    def __init__(self, config: SequenceModelConfig) -> None:
        super().__init__()
        self.config = config
        self.input = None if config.input is None else RawInput(config.input)
        self.embedding: Linear | nn.Embedding
        if config.d_input is not None:
            self.embedding = Linear(config.frame_length * config.d_input, config.d_model)
        else:
            self.embedding = nn.Embedding(cast("int", config.vocab_size), config.d_model)
        self.layers = build_blocks(config.blocks, config.d_model)
        final = config.final_norm
        self.norm = None if final is None else build_any_norm(final, config.d_model, config.norm_eps)
        self.pooling = None if config.pooling is None else build_pooling(config.pooling, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.head = self._build_head()
        self.reset_parameters()

    def _build_head(self) -> Linear:
        """What makes outputs of the features, pooled if there is a pooling; its weight has the model's dtype."""
        return Linear(self.config.d_model, self.config.n_outputs)

    def reset_parameters(self) -> None:
        """Draw all parameters again; branches into the residual stream are scaled by 1/sqrt(their number)."""
        self._refuse_if_frozen("cannot draw its parameters again")
        self.embedding.reset_parameters()  # a token's or a number's features are of order 1, as the layers expect
        self._reset_blocks()
        for module in (self.norm, self.pooling):
            if module is not None:
                module.reset_parameters()
        self.head.reset_parameters()

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> SequenceState:
        """The state before the first step. ``dtype`` defaults to float32, or wider if the parameters are.

        Errors:  InputError from a bidirectional layer, and for an ``input`` that needs whole rows: they have no state.
        """
        self._refuse_pieces()
        weight = self.head.weight
        device = weight.device if device is None else torch.device(device)
        dtype = weight.dtype if dtype is None else dtype
        layers = tuple(block.initial_state(batch, device=device, dtype=dtype) for block in self.blocks)
        pooling = () if self.pooling is None else self.pooling.initial_state(batch, device=device, dtype=dtype)
        waiting: Any = ()
        if self.config.frame_length > 1:
            like = torch.empty(0, device=device, dtype=dtype)
            waiting = initial_frame_state(batch, self.config.frame_length, cast("int", self.config.d_input), like)
        return SequenceState(torch.zeros(batch, dtype=torch.int64, device=device), layers, pooling, waiting)

    def features(
        self,
        x: Tensor,
        state: SequenceState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, SequenceState | None]:
        """The (normed) output of the last layer, (batch, length, d_model), and a state whose pooling is as it was.

        With frames the length is the number of frames.
        """
        h, _, after = self._features(x, state, lengths, starts)
        return h, after

    def _features(
        self, x: Tensor, state: SequenceState | None, lengths: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Masks, SequenceState | None]:
        """``features``, and the masks that they have."""
        self._check(x, state, starts)
        if self.input is not None:
            x, lengths = self.input.cut(x, None if state is None else state.position, lengths)
        masks = build_masks(x, lengths, starts)
        if state is None:
            self._check_not_empty(x, masks.lengths)
        if self.input is not None:
            x = self.input(x, masks, self.embedding.weight.dtype)
        position = None if state is None else advance(state.position, x, masks)
        waiting: Any = ()
        if self.config.frame_length > 1:
            before = None if state is None else state.frames
            x, masks, waiting = frames(x, self.config.frame_length, before, masks.lengths)
        x = mask_time(x, masks.valid)
        if self.config.vocab_size is not None:
            self._check_ids(x)
        else:
            x, masks = read_missing(x, masks, self.blocks)
        h = self.embedding(x)
        h, states = self._through(h, None if state is None else state.layers, masks)
        if self.norm is not None:
            h = apply_norm(self.norm, h, masks)
        if state is None or position is None:
            return h, masks, None
        return h, masks, SequenceState(position, states, state.pooling, waiting)

    def embed(
        self,
        x: Tensor,
        state: SequenceState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, SequenceState | None]:
        """What the head reads: the pooled features (batch, d_model), or without a pooling (batch, length, d_model)."""
        h, masks, after = self._features(x, state, lengths, starts)
        if self.pooling is not None:
            h, pooled = self.pooling(h, None if state is None else state.pooling, masks=masks)
            after = None if after is None else after._replace(pooling=pooled)
        return h, after

    def forward(
        self,
        x: Tensor,
        state: SequenceState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, SequenceState | None]:
        h, after = self.embed(x, state, lengths=lengths, starts=starts)
        return self.head(self.dropout(h).to(self.head.weight.dtype)), after

    def _check(self, x: Tensor, state: SequenceState | None, starts: Tensor | None) -> None:
        """x but for its ids, and the state but for what the layers check."""
        if not isinstance(x, Tensor):
            raise InputError(f"x must be a tensor, got {type(x).__name__}; use torch.as_tensor(x)")
        d_input, raw = self.config.d_input, self.input is not None
        real = not x.is_complex() if raw else x.is_floating_point()
        if d_input is not None and (x.ndim != 3 or x.shape[-1] != d_input or not real):
            raise InputError(
                f"x must be {'real' if raw else 'floating'}, of shape (batch, length, {d_input}), got {x.dtype} "
                f"{tuple(x.shape)}; the model reads {d_input} number{'s' * (d_input > 1)} a step"
            )
        check_device(x, self.embedding.weight, "x")
        if d_input is not None and not raw:
            check_weight(x, self.embedding.weight, type(self).__name__)
        if d_input is None and (x.ndim != 2 or x.dtype not in (torch.int64, torch.int32)):
            raise InputError(
                f"x must be integers of shape (batch, length), got {x.dtype} {tuple(x.shape)}; the model reads tokens"
            )
        if starts is not None and self.pooling is not None:
            raise InputError(
                f"starts packs several sequences in a row, but pooling={self.config.pooling!r} gives one output a row; "
                "put each sequence into its own row, with lengths, or build the model with pooling=None"
            )
        if state is None:
            return
        if not isinstance(state, SequenceState):
            raise InputError(
                f"state must be a SequenceState or None, got {type(state).__name__}; "
                "begin with model.initial_state(batch)"
            )
        self._refuse_pieces()
        name = type(self).__name__
        check_layers("model", state.layers, len(self.layers))
        check_state(name, state.position, COUNT, x.shape[0], x.device, "state.position")
        check_frame_state(name, state.frames, x, self.config.frame_length)

    def _refuse_pieces(self) -> None:
        reason = None if self.input is None else self.input.config.whole_rows
        if reason is not None:
            raise InputError(f"this model has no state: {reason}; give it whole rows, without a state")

    def _check_not_empty(self, x: Tensor, lengths: Tensor | None) -> None:
        """Something to pool in each row; lengths cost one wait for the device, and nothing in compiled code."""
        if self.pooling is None or x.shape[0] == 0 or torch.compiler.is_compiling():
            return
        frame_length, shortest = self.config.frame_length, x.shape[1]
        if lengths is not None and shortest >= frame_length:
            if lengths.is_meta:
                return
            shortest = int(whole(lengths).min())
        if shortest >= frame_length:
            return
        if shortest == 0:
            raise InputError("a row of x has no steps to pool; give each row at least one, or give a state")
        raise InputError(
            f"a row of x has {shortest} steps, but frame_length={frame_length}: no whole frame to pool; "
            "give longer rows, or a state"
        )

    def _check_ids(self, tokens: Tensor) -> None:
        """Ids of the embedding only; costs one wait for the device, and nothing in compiled code."""
        if torch.compiler.is_compiling() or tokens.is_meta or tokens.numel() == 0:
            return
        low, high = torch.stack(whole(tokens).aminmax()).tolist()
        vocab_size = cast("int", self.config.vocab_size)
        if low < 0 or high >= vocab_size:
            raise InputError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}; "
                f"use ids 0 to {vocab_size - 1}"
            )
