"""Sequence parallelism: each rank of a group reads one piece of every row, and nothing of the result changes."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.mixers.attention import Attention
from statewise.mixers.base import Mixer
from statewise.mixers.no_mixer import NoMixer
from statewise.models.base import Model
from statewise.models.batch_norm import BatchNorm
from statewise.models.encoder import SequenceModel, SequenceState
from statewise.models.frames import initial_frame_state
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.operators.base import Operator
from statewise.training.distributed.batch_norm import share_statistics
from statewise.training.distributed.sequence_attention import Places, Ring, choose_ring, find_places
from statewise.training.distributed.sequence_layer import RelayHooks, from_last, hooked, relayed, stand_in
from statewise.training.distributed.sequence_relay import Line, Relay


def sequence_parallel(
    reader: Operator | Mixer,
    x: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    attention: str = "auto",
) -> Tensor:
    """The outputs of an operator or a mixer for this rank's piece x of a sequence, begun at rest.

    They are those of ``reader(whole sequence)`` at these steps, and so are all gradients: of x for this piece, of
    parameters and of an operator's coefficients what this piece adds, to be summed over the ranks. A time-varying
    operator has the coefficients of this piece only. Every rank of the group makes the call, and the backward pass.

    Shapes:  x: (batch, length, ...), the pieces in the order of the ranks, of any lengths   lengths, starts: of this
             piece   ->   y: (batch, length, ...)
    Cost:    one after the other the ranks read their pieces; of several calls in a row each rank makes one while the
             rank behind makes the one before. Attention reads all pieces at once, when all keys and values have gone
             to all ranks (``attention``: see :func:`apply_sequence_parallel`).
    Errors:  InputError for a mixer that reads in both directions.
    Source:  the state is what state passing hands from chunk to chunk: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.2.
    """
    line = Line(group)
    if isinstance(reader, Operator):
        options: dict[str, Any] = {"device": x.device, "dtype": reader._state_dtype(x)}
        rest = reader.initial_state(x.shape[0], trailing=reader._trailing(x), **options)
        relay = Relay(line)
        x, state = relay.begin(x, rest)
        y, state = reader(x, state, lengths=lengths, starts=starts)
        y = relay.end(y, state)
    else:
        if not reader.is_causal:
            raise InputError(_both_directions(f"a {type(reader).__name__}"))
        if reader.reads_memory:
            raise InputError(_reads_memory(f"a {type(reader).__name__}"))
        if _keeps_a_history(reader):
            raise InputError(_history(f"a {type(reader).__name__}"))
        places = find_places(line, x, None, lengths, starts) if isinstance(reader, Attention) else None
        before = stand_in(reader, line, places, choose_ring(attention, line, x.device))
        with hooked(reader):
            y, _ = reader(x, before, lengths=lengths, starts=starts)
    line.settle()
    return y


def apply_sequence_parallel(
    model: Model,
    group: dist.ProcessGroup | None = None,
    *,
    attention: str = "auto",
    device: torch.device | None = None,
) -> SequenceParallel:
    """From now on each rank of the group gives ``model`` its piece of every row, and all make the same calls.

    The pieces lie in the order of the ranks. ``model.features`` and ``model(...)`` then give the outputs of the whole
    rows at this rank's steps; with a pooling, every rank gets the outputs of the whole rows. Call backward on every
    rank. The mean of the ranks' losses is the loss, if each rank has as many predictions as another, and the mean of
    their gradients is its gradient.

    attention: of full attention, "auto" is PyTorch's context parallelism (a ring) on CUDA and elsewhere "gather", by
               which keys and values of all pieces go to all ranks; each can be asked for by name. Windows and packed
               documents are gathered in any case.
    device:    where the model will be when it is called; None: where it is
    State:     a state given to a call is that before the whole rows, the same on every rank, and the one that comes
               back is that behind them, without its graph; not with attention, nor with frames. Where the given one
               asks for a gradient, the first rank has that, and the state behind has a graph on the last rank.
    Cost:      with n layers and P ranks as much time as n + P - 1 layers of a piece; what travels is one state a
               layer, and attention's keys and values. The parameters are those of a single process: shard them over
               other ranks than these, who would otherwise wait for each other at each layer.
    Batch norm: its statistics are those of all pieces, for which the ranks wait for each other at each layer;
               not with ``gradient_checkpointing``.
    Errors:    ConfigError for a layer that reads in both directions and so has no state, and for a forecaster.
    """
    return SequenceParallel(model, group, attention, next(model.parameters()).device if device is None else device)


class SequenceParallel:
    """What :func:`apply_sequence_parallel` has done to a model, to pause and to undo it."""

    def __init__(self, model: Model, group: dist.ProcessGroup | None, attention: str, device: torch.device) -> None:
        _check(model)
        self.model = cast("LanguageModel | SequenceModel", model)
        self.line = Line(group)
        self._ring: Ring | None = choose_ring(attention, self.line, device)
        self._is_disabled = False
        self._hooks = [RelayHooks(layer) for block in model.blocks for layer in relayed(block.mixer)]
        pooling = getattr(model, "pooling", None)
        self._is_pooled = pooling is not None
        if pooling is not None:
            self._hooks.append(RelayHooks(pooling, then=partial(from_last, self.line)))
        self._needs_places = getattr(model, "positions", None) is not None or any(
            isinstance(block.mixer, Attention) for block in model.blocks
        )
        self._norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        share_statistics(model, self.line.group)
        self._entries = ["features"] if isinstance(model, LanguageModel) else ["features", "forward"]
        self._originals = {name: vars(model).get(name) for name in self._entries}
        for name in self._entries:
            setattr(model, name, types.MethodType(self._entry(getattr(model, name)), model))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within it the model reads whole rows by itself again, as on one process: for evaluation on some ranks."""
        before, self._is_disabled = self._is_disabled, True
        try:
            yield
        finally:
            self._is_disabled = before

    def remove(self) -> None:
        """The model is as it was."""
        for hooks in self._hooks:
            hooks.remove()
        for norm in self._norms:
            del norm._statistics
        for name, original in self._originals.items():
            if original is None:
                delattr(self.model, name)
            else:
                setattr(self.model, name, original)

    def _entry(self, original: types.MethodType) -> Any:
        """The method in whose place it is put, with the pieces around it."""

        def read(
            model: Any, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
        ) -> tuple[Tensor, Any]:
            if self._is_disabled or not isinstance(x, Tensor):
                return original.__func__(model, x, state, lengths=lengths, starts=starts)
            self._check_call(x, state)
            self.line.settle()
            position = None if state is None else state.position
            places = None
            if self._needs_places or state is not None:
                places = find_places(self.line, x, position, lengths, starts)
            before = self._before(x, state, places)
            y, _ = original.__func__(model, x, before, lengths=lengths, starts=starts)
            after = None if state is None or places is None else self._after(before, places, x.device)
            if not torch.is_grad_enabled():
                self.line.settle()
            return y, after

        return read

    def _check_call(self, x: Any, state: Any) -> None:
        """The state's type, and that it can be handed on; that no norm waits for others in the backward pass."""
        model = self.model
        if self._norms and model.gradient_checkpointing and model.training and torch.is_grad_enabled():
            raise InputError(
                "under sequence parallelism a model with batch norm is not recomputed in the backward pass; set "
                "gradient_checkpointing=False"
            )
        kind = LanguageModelState if isinstance(model, LanguageModel) else SequenceState
        frame_length = getattr(model.config, "frame_length", 1)
        if state is not None:
            if not isinstance(state, kind) or len(state.layers) != len(model.layers):
                raise InputError(f"state must be a {kind.__name__} of this model or None, got {type(state).__name__}")
            if frame_length > 1 or any(isinstance(block.mixer, Attention) for block in model.blocks):
                raise InputError(
                    "under sequence parallelism no state is carried from call to call for a model with attention or "
                    "with frames; give it whole sequences, with state=None"
                )
        if frame_length > 1 and x.shape[1] % frame_length:
            raise InputError(
                f"a piece of {x.shape[1]} steps cuts a frame of frame_length={frame_length} in two; use pieces of a "
                "multiple of it"
            )

    def _before(self, x: Tensor, state: Any, places: Places | None) -> Any:
        """The state that the model is called with: what stands in for that of each layer."""
        model, batch = self.model, x.shape[0]
        given = [None] * len(model.layers) if state is None else state.layers
        mixers = [block.mixer for block in model.blocks]
        layers = tuple(stand_in(m, self.line, places, self._ring, own) for m, own in zip(mixers, given))
        position = torch.zeros(batch, dtype=torch.int64, device=x.device) if places is None else places.before
        if isinstance(model, LanguageModel):
            return LanguageModelState(position, layers)
        pooling = Relay(self.line, None if state is None else state.pooling) if self._is_pooled else ()
        waiting: Any = ()
        if model.config.frame_length > 1:
            waiting = initial_frame_state(batch, model.config.frame_length, cast(int, model.config.d_input), x)
        return SequenceState(position, layers, pooling, waiting)

    def _after(self, before: Any, places: Places, device: torch.device) -> Any:
        """The state behind the last piece, for every rank."""
        relays = [*before.layers, before.pooling] if self._is_pooled else before.layers
        states = self.line.share_last(relays, device)
        if isinstance(before, LanguageModelState):
            return LanguageModelState(places.after, tuple(states))
        n_layers = len(before.layers)
        return SequenceState(places.after, tuple(states[:n_layers]), states[n_layers] if self._is_pooled else ())


def _check(model: Any) -> None:
    if not isinstance(model, (LanguageModel, SequenceModel)):
        raise ConfigError(
            f"sequence parallelism reads language models, classifiers and regressors of sequences, not a "
            f"{type(model).__name__}; train it with train.parallel.sequence=1"
        )
    for i, block in enumerate(model.blocks):
        if not block.mixer.is_causal:
            raise ConfigError(_both_directions(f"layers[{i}]"))
        if isinstance(block.mixer, NoMixer) or block.mixer.parts() != (block.mixer,):
            raise ConfigError(
                f"layers[{i}] has no mixer, or more than one, whose states no rank hands on; train it with "
                "train.parallel.sequence=1"
            )
        if block.mixer.reads_memory:
            raise ConfigError(_reads_memory(f"layers[{i}]"))
        if _keeps_a_history(block.mixer):
            raise ConfigError(_history(f"layers[{i}]"))


def _keeps_a_history(mixer: Any) -> bool:
    """Whether its state grows, and it is not the attention whose keys and values the ranks fetch."""
    return not getattr(mixer, "bounded_state", True) and not isinstance(mixer, Attention)


def _history(what: str) -> str:
    return f"{what} keeps a history, which is not divided over ranks; train it with train.parallel.sequence=1"


def _reads_memory(what: str) -> str:
    return f"{what} reads a memory, which is not divided over ranks; train it with train.parallel.sequence=1"


def _both_directions(what: str) -> str:
    return (
        f"{what} reads in both directions and so has no state to hand from rank to rank; build it with "
        "bidirectional=False, or train with train.parallel.sequence=1"
    )
