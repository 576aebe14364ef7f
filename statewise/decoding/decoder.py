"""A language model's step in one call of C code: its weights are packed once, its state is passed in and out."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from statewise import native
from statewise.decoding.layers import emit_model, matrices, refusal
from statewise.decoding.packing import LARGEST, Packed, check_precision, quantise
from statewise.decoding.program import Program, Weights
from statewise.decoding.reading import uses_vnni, way_of
from statewise.decoding.states import addresses, check_plain, check_positions, check_state, copied, plain
from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.operators.base import check_batch


class Decoder:
    """``logits, state = decoder(tokens, state)``: one token of each row, as the model in evaluation mode reads it.

    weights: "float32", "bfloat16", "int8" or "int4", the precision of all matrices (embedding, head, projections,
             MLPs); by default as the model has them. Small tensors stay in float32, and so do activations and states.
             The result is that of :func:`dequantised` with the same weights, to the rounding of float32. In int8 and
             int4 the input of a matrix product is rounded to 16 bits; the largest of every 256 columns becomes 32767.
    group:   columns of a matrix that share a scale, a multiple of 8; by default a whole row in int8, and 32 in int4

    A decoder is a snapshot, as a frozen model is: it has its own copy of the weights, and does not change when the
    model does. It holds no state, so several threads may call it, even with the same state; each gets what it would
    get alone. You can copy it, pickle it and send it to a process.

    Shapes:  tokens: (batch, 1) or (batch,) -> logits (batch, 1, vocabulary) or (batch, vocabulary), float32
    Cost:    every weight is read once, for all rows together: n_bytes / (memory bandwidth), however many tokens came
             before, if each mixer's state is bounded.
    Numerics: the same bits on any number of threads, and for each way of reading the weights, which the first steps
             try (see ``reading``). NaN propagates, and so does infinity, in int8 and int4 as NaN.
    Errors:  InputError if there are no C kernels, for a layer without a step in C (naming it), for weights that are not
             finite in int8 and int4; in a call for shapes, ids out of range and states that do not fit.
    """

    def __init__(self, model: LanguageModel, weights: str | None = None, *, group: int | None = None) -> None:
        weights = _default_precision(model) if weights is None else weights
        check_precision(weights, group)
        reason = why_not(model)
        if reason is not None:
            raise InputError(f"this model has no step in C: {reason}; use the model itself")
        self.weights = weights
        self.config = model.config
        with torch.inference_mode(False), torch.no_grad():
            self._program = Program(Weights(weights, group, {}))
            self._tables, self._n_body, self._positions = emit_model(self._program, model)
            self._packed: list[Packed] = list(self._program.weights.packed.values())
            self._program.weights.packed.clear()  # its keys say which tensor only while the model lives
            self._instructions, self._buffers = self._program.tables()
            small = sum(x.numel() * x.element_size() for x in self._program.kept)
            self._n_bytes = small + sum(packed.n_bytes for packed in self._packed)
            self._rest = model.initial_state(1, device="cpu", dtype=torch.float32)
            self._shapes = tuple(block.mixer.state_shape() for block in model.blocks)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_instructions", "_buffers")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        """The table of instructions is made again: it holds addresses."""
        if not native.available():
            raise InputError(f"a decoder needs the C kernels, which are not available: {native.why_not()}")
        vars(self).update(values)
        self._instructions, self._buffers = self._program.tables()

    @property
    def n_bytes(self) -> int:
        """Memory of the packed weights with their scales, which each step reads."""
        return self._n_bytes

    def initial_state(self, batch: int) -> LanguageModelState:
        """The state before the first token."""
        check_batch(batch)
        layers = [copied(_repeated(layer, batch)) for layer in self._rest.layers]
        return LanguageModelState(torch.zeros(batch, dtype=torch.int64, device="cpu"), tuple(layers))

    def __call__(
        self,
        tokens: Tensor,
        state: LanguageModelState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        logits: bool = True,
    ) -> tuple[Tensor | None, LanguageModelState | None]:
        """lengths: (batch,) 0 or 1: rows of length 0 keep their state, and their logits are 0. starts: (batch, 1) or
        (batch,) bool: a document begins with the row's token. logits: False where only the state is wanted; then None
        is returned in their place, and the head is not read."""
        batch = len(tokens) if isinstance(tokens, Tensor) and tokens.ndim else 0
        running = Running(self, state, batch=batch, shared=True)
        with torch.no_grad():
            out = running.step(tokens, lengths=lengths, starts=starts, logits=logits)
        if out is not None and tokens.ndim == 2:
            out = out[:, None]
        return out, None if state is None else running.state

    def run(self, state: LanguageModelState) -> Running:
        """A sequence of steps that begins with a copy of this state, and then updates it in place."""
        position = getattr(state, "position", None)
        batch = len(position) if isinstance(position, Tensor) and position.ndim else 0
        return Running(self, state, batch=batch, shared=False)


class Running:
    """``logits = running.step(tokens)``, and after it ``running.state``.

    A step writes over the state of the one before: half the traffic of making a new one. But no state that was given or
    got ever changes: the step after ``running.state`` was got makes a new one.

    Several threads may use one. Their steps come one after the other; each thread does better with a run of its own.

    shared: whether the first step leaves the state alone too; otherwise the run begins with a copy
    """

    def __init__(self, decoder: Decoder, state: LanguageModelState | None, *, batch: int, shared: bool) -> None:
        self._decoder, self._shared = decoder, shared
        if state is None:
            state = decoder.initial_state(batch)
        else:
            self._check(state, batch)
            state = state if shared else self._copied(state)
        self._state: LanguageModelState = state
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._claimed = False  # whether the slots after the histories' ends are this run's
        self._room = 0  # steps until a history has to be made ready again
        self._addresses: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_decoder": self._decoder, "_state": self.state, "_shared": True}

    def __setstate__(self, values: dict[str, Any]) -> None:
        """A copy, also a shallow one, makes a new state with its first step."""
        vars(self).update(values)
        self._begin()

    def _copied(self, state: LanguageModelState) -> LanguageModelState:
        layers = zip(self._decoder._tables, state.layers)
        return LanguageModelState(copied(state.position), tuple(table.copied(layer) for table, layer in layers))

    @property
    def state(self) -> LanguageModelState:
        """The state after the steps so far. It stays as it is, and the next step makes a new one."""
        with self._lock:
            self._release()
            self._shared = True
            return self._state

    def passing_state(self) -> LanguageModelState:
        """The state after the steps so far, to be copied or forgotten before the next step, which writes over it."""
        return self._state

    def put(self, row: int, state: LanguageModelState) -> None:
        """Replaces the state of a row by that of ``state``, which has one row: a sequence leaves the batch, and another
        one joins it. The other rows stay as they are.

        Cost:    a copy of one row's state; with attention, of all histories where the new one is longer.
        """
        with self._lock, torch.no_grad():
            self._check(state, 1)
            self._release()
            if self._shared:
                self._state, self._shared = self._copied(self._state), False
            tables = zip(self._decoder._tables, self._state.layers, state.layers)
            layers = tuple(table.put(layer, row, other) for table, layer, other in tables)
            position = self._state.position.clone()
            position[row] = state.position[0]
            self._state = LanguageModelState(position, layers)

    def step(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        logits: bool = True,
    ) -> Tensor | None:
        """One token of each row: (batch,) or (batch, 1) -> (batch, vocabulary). Options as :meth:`Decoder.__call__`."""
        if is_exact():
            raise InputError(
                "a Decoder has no exact form; in exact mode use the model itself, and generate without weights"
            )
        with self._lock:
            return self._step(tokens, lengths, starts, logits)

    def _step(self, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None, logits: bool) -> Tensor | None:
        decoder = self._decoder
        batch = len(self._state.position)
        ids, active, restarts = self._read(tokens, lengths, starts, batch)
        rows = torch.arange(batch, device="cpu") if active is None else active.nonzero()[:, 0].contiguous()
        out = None
        if logits:
            n_logits = decoder.config.vocab_size
            make = torch.empty if active is None else torch.zeros
            out = make(batch, n_logits, dtype=torch.float32, device="cpu")
        if len(rows) == 0:
            return out
        for table, layer in zip(decoder._tables, self._state.layers):
            table.check(layer, rows, restarts)
        check_positions(self._state.position, rows, restarts, decoder.config.max_positions)
        before, after, places = self._places(every_row=active is None)
        positions = plain(before.position)  # held while C reads it
        if decoder._positions is not None:
            places[decoder._positions] = positions.data_ptr()
        program, n_threads = decoder._program, native.n_threads()
        shared, local = program.widths
        n_scratch = len(rows) * (shared + n_threads * local)
        scratch = torch.empty(n_scratch, dtype=torch.float32, device="cpu")
        step = native.function("decode_step", None, "plppllplpppplllll")
        with way_of(decoder.weights, decoder.n_bytes, len(rows), n_threads, whole=logits) as way:
            step(
                decoder._instructions,
                len(program) if logits else decoder._n_body,
                decoder._buffers,
                scratch,
                shared,
                local,
                rows,
                len(rows),
                ids,
                restarts,
                places,
                out,
                decoder.config.vocab_size,
                n_threads,
                way.kind,
                way.ahead,
                uses_vnni(),
            )
        position = before.position.masked_fill(restarts, 0) + 1
        if active is not None:
            position = position.where(active, before.position)
        self._state = LanguageModelState(position, after.layers)
        return out

    def _places(self, *, every_row: bool) -> tuple[LanguageModelState, LanguageModelState, Tensor]:
        """The state before the step, where the one after it goes, and the addresses of both."""
        tables = self._decoder._tables
        if self._room == 0:
            self._release()
            layers = tuple(table.prepare(layer) for table, layer in zip(tables, self._state.layers))
            self._state, self._claimed = self._state._replace(layers=layers), True
            rooms = [table.room(layer) for table, layer in zip(tables, layers)]
            self._room = min((room for room in rooms if room is not None), default=1 << 62)
        self._room -= 1
        before = self._state
        if not self._shared:
            if self._addresses is None:
                self._addresses = self._table(before, before)
            return before, before, self._addresses
        layers = tuple(table.successor(layer, every_row=every_row) for table, layer in zip(tables, before.layers))
        after = before._replace(layers=layers)
        self._shared = False
        return before, after, self._table(before, after)

    def _table(self, before: LanguageModelState, after: LanguageModelState) -> Tensor:
        return addresses(self._decoder._tables, before.layers, after.layers, self._decoder._program.n_state)

    def _release(self) -> None:
        if self._claimed:
            for table, layer in zip(self._decoder._tables, self._state.layers):
                table.release(layer)
        self._claimed, self._room, self._addresses = False, 0, None

    def _check(self, state: LanguageModelState, batch: int) -> None:
        if not isinstance(state, LanguageModelState):
            raise InputError(
                f"state must be a LanguageModelState or None, got {type(state).__name__}; "
                "begin with decoder.initial_state(batch)"
            )
        shapes = self._decoder._shapes
        if not isinstance(state.position, Tensor):
            raise InputError(f"state.position must be a tensor, got {type(state.position).__name__}")
        if len(state.layers) != len(shapes) or state.position.shape != (batch,):
            raise InputError(
                f"state is for {len(state.layers)} layers and batch {tuple(state.position.shape)}; "
                f"this decoder has {len(shapes)} layers and the tokens have batch {batch}"
            )
        check_plain(state.position, torch.int64)
        for layer, shape in zip(state.layers, shapes):
            check_state(layer, shape, batch)

    def _read(
        self, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None, batch: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """ids (batch,) int64, active rows (None: all), and rows that restart, (batch,) bool."""
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
            given = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens must be a tensor of integers, got {given}")
        if tuple(tokens.shape) not in ((batch,), (batch, 1)):
            raise InputError(
                f"a decoder reads one token of each row, ({batch}, 1) or ({batch},); got {tuple(tokens.shape)}. "
                "To read more, call the model, and continue from its state"
            )
        ids = tokens.reshape(batch).to("cpu", torch.int64).contiguous()
        active: Tensor | None = None
        if lengths is not None:
            if lengths.shape != (batch,) or (batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= 1):
                raise InputError(f"lengths must be 0 or 1 for each of {batch} rows, got {lengths.tolist()}")
            active = lengths.to("cpu") > 0
            ids = ids.where(active, 0)
            active = None if bool(active.all()) else active
        if starts is None:
            restarts = torch.zeros(batch, dtype=torch.bool, device="cpu")
        elif tuple(starts.shape) in ((batch,), (batch, 1)) and starts.dtype == torch.bool:
            restarts = starts.reshape(batch).to("cpu").contiguous()
        else:
            raise InputError(f"starts must be bool of shape ({batch}, 1), got {starts.dtype} {tuple(starts.shape)}")
        if batch:
            low, high = torch.stack(ids.aminmax()).tolist()
            vocab_size = self._decoder.config.vocab_size
            if low < 0 or high >= vocab_size:
                raise InputError(
                    f"token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}; "
                    f"use ids 0 to {vocab_size - 1}"
                )
        return ids, active, restarts


def why_not(model: nn.Module) -> str | None:
    """Why :class:`Decoder` cannot take this model here, in one line; None if it can."""
    if not native.available():
        return f"the C kernels are not available: {native.why_not()}"
    if is_exact():
        return "in exact mode a model reads by its own step, whose sums have another order"
    return refusal(model)


def dequantised(model: LanguageModel, weights: str, *, group: int | None = None) -> LanguageModel:
    """A copy of the model, each matrix replaced by what is left of it in that precision: what a Decoder computes.

    Shapes:  the parameters' dtype stays; a float32 model holds the quantised weights exactly.
    Errors:  InputError for an unknown precision or group, and for weights that are not finite.
    """
    check_precision(weights, group)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weight in matrices(changed):
            if weights in LARGEST:
                weight.copy_(quantise(weight, weights, group).weight())
            elif weights == "bfloat16":
                weight.copy_(weight.bfloat16())
    return changed


def _default_precision(model: nn.Module) -> str:
    weight = next(model.parameters(), torch.empty(0))
    return "bfloat16" if weight.dtype == torch.bfloat16 else "float32"


def _repeated(layer: object, batch: int) -> object:
    return tree_map(lambda leaf: leaf.expand(batch, *leaf.shape[1:]), layer)
