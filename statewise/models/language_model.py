"""A language model: embedding, any tuple of layers, norm, head. One call trains, prefills and decodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Finite, Fraction, Natural, NonNegative, OneOf, Positive
from statewise.errors import ConfigError, InputError
from statewise.kernels.batching import may_read, whole
from statewise.mixers.positions import LearnedPositions, document_positions
from statewise.mixers.projection import Linear
from statewise.models.base import Model, ModelConfig, advance, build_blocks, check_device, check_layers
from statewise.models.block import NORMS, BlockConfig, Layers, as_block, build_norm
from statewise.models.head import Head
from statewise.models.rewinding import RewindableState
from statewise.models.shared_transformer import share_weights
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import COUNT, check_state

SHORTEST_CHUNK = 64  # steps of a row: what the chunked forms take at a time, and so the least worth reading at once


class LanguageModelState(NamedTuple):
    """position: (batch,) int64, tokens read since the row's document began; layers: one state per layer."""

    position: Tensor
    layers: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(ModelConfig):
    """A causal language model. ``layers`` holds blocks or bare mixer configs, so a hybrid is tuple arithmetic.

    norm:          after the last layer; None: none
    max_positions: how many positions have a learned vector, added to the embedding by the token's position in its
                   document; documents may not be longer. None: no vectors, and positions are left to the layers
    position_offset: rows of that table before the one of position 0, which are never read: 2 in OPT
    d_embedding:   width of the embedding and of the head; two maps without biases lead from there to d_model, before
                   the positions are added, and back. None: d_model, and no maps
    embedding_scale: by which the embedding of a token is multiplied
    embedding_norm: of the embedding, before positions are added; None: none
    logit_scale:   by which the logits are multiplied: the features are, before the head
    logit_cap:     the logits are cap tanh(logits / cap), behind the scale; None: as they are
    embedding_std: standard deviation of the embedding, of the positions and of these maps, at initialisation
    """

    vocab_size: Count
    d_model: Count
    layers: Layers
    norm: Annotated[str, OneOf(NORMS)] | None = "rms"
    norm_eps: NonNegative = 1e-5
    tie_embeddings: bool = True
    embedding_dropout: Fraction = 0.0
    embedding_std: NonNegative = 0.02
    max_positions: Count | None = None
    position_offset: Natural = 0
    d_embedding: Count | None = None
    embedding_scale: Finite = 1.0
    embedding_norm: Annotated[str, OneOf(NORMS)] | None = None
    logit_scale: Finite = 1.0
    logit_cap: Positive | None = None

    def __post_init__(self) -> None:
        if self.position_offset and self.max_positions is None:
            raise ConfigError(
                f"LanguageModelConfig.position_offset={self.position_offset} without max_positions; leave it 0"
            )

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """The layers, with bare mixer configs made into blocks."""
        return tuple(as_block(layer) for layer in self.layers)

    def in_full(self) -> LanguageModelConfig:
        return replace(self, layers=self.blocks)

    def build(self) -> LanguageModel:
        """The model, its parameters drawn from torch's global generator."""
        return LanguageModel(self)


class LanguageModel(Model):
    """tokens (batch, length) -> logits (batch, length, vocab_size), and the state if one was given.

    Logits at padded positions (beyond ``lengths``) mean nothing; their tokens may hold any id.

    Errors:  InputError for arguments that do not fit, ids outside the vocabulary, documents beyond ``max_positions``.
    """

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        d_embedding = d_model if config.d_embedding is None else config.d_embedding
        self.embedding = nn.Embedding(config.vocab_size, d_embedding)
        self.embedding_in = self.embedding_out = None
        if config.d_embedding is not None:
            self.embedding_in = Linear(d_embedding, d_model, bias=False)
            self.embedding_out = Linear(d_model, d_embedding, bias=False)
        norm = config.embedding_norm
        self.embedding_norm = None if norm is None else build_norm(norm, d_model, config.norm_eps)
        self.positions = None
        if config.max_positions is not None:
            self.positions = LearnedPositions(config.max_positions, d_model, offset=config.position_offset)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.layers = build_blocks(config.blocks, d_model)
        share_weights(block.mixer for block in self.blocks)
        for i, block in enumerate(self.blocks):
            if not block.mixer.is_causal:
                raise ConfigError(
                    f"LanguageModelConfig.layers[{i}] reads in both directions, so that it would see the token it is "
                    "to predict; build it with bidirectional=False"
                )
        self.norm = None if config.norm is None else build_norm(config.norm, d_model, config.norm_eps)
        self.head = Head(d_embedding, config.vocab_size, cap=config.logit_cap)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again; branches into the residual stream are scaled by 1/sqrt(their number)."""
        self._refuse_if_frozen("cannot draw its parameters again")
        head = None if self.config.tie_embeddings else self.head
        for drawn in (self.embedding, self.positions, self.embedding_in, self.embedding_out, head):
            if drawn is not None:
                nn.init.normal_(drawn.weight, std=self.config.embedding_std)
        self._reset_blocks()
        for norm in (self.embedding_norm, self.norm):
            if norm is not None:
                norm.reset_parameters()

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> LanguageModelState:
        """The state before the first token. ``dtype`` defaults to float32, or wider if the parameters are."""
        device = self.embedding.weight.device if device is None else torch.device(device)
        layers = tuple(block.initial_state(batch, device=device, dtype=dtype) for block in self.blocks)
        return LanguageModelState(torch.zeros(batch, dtype=torch.int64, device=device), layers)

    def with_room(self, state: LanguageModelState, length: int) -> LanguageModelState:
        """The same state, with room for ``length`` more tokens of each row in its histories of keys and values.

        Without this, the histories double as they fill. Other states do not grow, and stay as they are.

        length:  tokens of each row that are still to be read
        Cost:    a wait for the device, and one copy of each history that has less room; the memory is that of the
                 next power of two of slots. A history with a window stays as it is.
        Errors:  InputError for a state of another model, and a length below 0.
        """
        self._check_state(state)
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise InputError(f"length={length!r} is out of range; use an integer of at least 0, in tokens of each row")
        for block, layer in zip(self.blocks, state.layers):
            block.mixer.check_state(layer, state.position)
        layers = (block.mixer.with_room(layer, length) for block, layer in zip(self.blocks, state.layers))
        return state._replace(layers=tuple(layers))

    def features(
        self,
        tokens: Tensor,
        state: LanguageModelState | RewindableState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, LanguageModelState | None]:
        """The normed output of the last layer, (batch, length, d_model): what ``head`` turns into logits. With a
        ``d_embedding``, of that width.

        If you need few logits, call this, and then ``head`` on the positions you need.
        """
        if isinstance(state, RewindableState):
            call = partial(self._features, tokens, lengths=lengths, starts=starts)
            return state.extended(call, tokens, lengths, starts)
        return self._features(tokens, state, lengths=lengths, starts=starts)

    def _features(
        self, tokens: Tensor, state: LanguageModelState | None, *, lengths: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, LanguageModelState | None]:
        self._check(tokens, state)
        masks = build_masks(tokens, lengths, starts)
        tokens = mask_time(tokens, masks.valid)  # padding may hold anything, also ids that the embedding does not have
        self._check_ids(tokens)
        x = self.embedding_dropout(self._embed(tokens, state, masks))
        if any(block.mixer.reads_embedding for block in self.blocks):
            masks = masks._replace(embedded=x)
        x, states = self._through(x, None if state is None else state.layers, masks)
        x = self.behind_layers(x)
        if state is None:
            return x, None
        return x, LanguageModelState(advance(state.position, tokens, masks), states)

    def behind_layers(self, x: Tensor) -> Tensor:
        """What ``head`` reads, (batch, length, d_model or d_embedding), of what the last layer gave."""
        if self.norm is not None:
            x = self.norm(x)
        if self.embedding_out is not None:
            x = self.embedding_out(x)
        return x if self.config.logit_scale == 1.0 else x * self.config.logit_scale

    def _embed(self, tokens: Tensor, state: LanguageModelState | None, masks: Masks) -> Tensor:
        """The embedding of the tokens, with that of their positions."""
        x: Tensor = self.embedding(tokens)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self.embedding_in is not None:
            x = self.embedding_in(x)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.positions is None or tokens.numel() == 0:
            return x
        length = tokens.shape[1]
        before = None if state is None else state.position
        position, _ = document_positions(length, before, masks.starts, device=tokens.device)
        return x + self.positions(position, lengths=masks.lengths, at_most=length if state is None else None)

    def forward(
        self,
        tokens: Tensor,
        state: LanguageModelState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, LanguageModelState | None]:
        x, state = self.features(tokens, state, lengths=lengths, starts=starts)
        return self.head(x), state

    def _check(self, tokens: Tensor, state: LanguageModelState | None) -> None:
        """The tokens but for their ids, and the state but for what the layers check."""
        if not isinstance(tokens, Tensor):
            raise InputError(f"tokens must be a tensor, got {type(tokens).__name__}; use torch.as_tensor(tokens)")
        if state is not None:
            self._check_state(state)
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"tokens must be integers of shape (batch, length), got {tokens.dtype} {tuple(tokens.shape)}"
            )
        check_device(tokens, self.embedding.weight, "tokens")
        if state is not None:
            check_state("LanguageModel", state.position, COUNT, tokens.shape[0], tokens.device, "state.position")

    def _check_state(self, state: LanguageModelState) -> None:
        if not isinstance(state, LanguageModelState):
            raise InputError(
                f"state must be a LanguageModelState or None, got {type(state).__name__}; "
                "begin with model.initial_state(batch)"
            )
        check_layers("model", state.layers, len(self.layers))

    def _check_ids(self, tokens: Tensor) -> None:
        """Ids of the embedding only; costs one wait for the device, and nothing in compiled code."""
        if not may_read(tokens) or tokens.numel() == 0:
            return
        low, high = torch.stack(whole(tokens).aminmax()).tolist()
        if low < 0 or high >= self.config.vocab_size:
            raise InputError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {self.config.vocab_size}; "
                f"use ids 0 to {self.config.vocab_size - 1}"
            )
