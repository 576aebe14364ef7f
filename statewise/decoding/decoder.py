"""A language model's step in one call of C code: its weights are packed once, its state is passed in and out."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from statewise import native
from statewise.decoding.ahead import Ahead
from statewise.decoding.branches import DecoderBranches
from statewise.decoding.call import Tokens, call_step
from statewise.decoding.layers import emit_model, matrices, refusal
from statewise.decoding.packing import LARGEST, STORED, Packed, check_precision, quantise
from statewise.decoding.program import Program, Weights
from statewise.decoding.reading import way_of
from statewise.decoding.running import Running
from statewise.decoding.states import check_plain, check_state, copied
from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.owner import exact_in
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.models.quantised import is_quantised
from statewise.operators.base import check_batch


class Decoder:
    """``logits, state = decoder(tokens, state)``: one token of each row, as the model in evaluation mode reads it.

    weights: "float32", "bfloat16", "int8" or "int4", the precision of all matrices (embedding, head, projections,
             MLPs, experts); by default as the model has them. Small tensors stay in float32, and so do activations,
             states, and the maps that choose among experts.
             A model that :func:`statewise.load` opened with ``keep_quantised`` keeps the whole numbers of its file, and
             ``decoder.weights`` is "stored".
             The result is that of :func:`dequantised` with the same weights, to the rounding of float32. In int8 and
             int4 the input of a matrix product is rounded to 16 bits; the largest of every 256 columns becomes 32767.
    group:   columns of a matrix that share a scale, a multiple of 8; by default a whole row in int8, and 32 in int4

    A decoder is a snapshot, as a frozen model is: it has its own copy of the weights, and does not change when the
    model does. It holds no state, so several threads may call it, even with the same state; each gets what it would
    get alone. You can copy it, pickle it and send it to a process.

    Shapes:  tokens: (batch, 1) or (batch,) -> logits (batch, 1, vocabulary) or (batch, vocabulary), float32
    Cost:    every weight is read once, for all rows together: n_bytes / (memory bandwidth), however many tokens came
             before, if each mixer's state is bounded. A mixture reads only the experts that a row chose.
    Numerics: the same bits on any number of threads, and for each way of reading the weights, which the first steps
             try (see ``reading``). NaN propagates, and so does infinity, in int8 and int4 as NaN.
    Errors:  InputError if there are no C kernels, for a layer without a step in C (naming it), for weights that are not
             finite in int8 and int4; in a call for shapes, ids out of range and states that do not fit.
    """

    def __init__(self, model: LanguageModel, weights: str | None = None, *, group: int | None = None) -> None:
        if weights is not None or group is not None:
            check_precision(weights or _default_precision(model), group)
        weights = _default_precision(model) if weights is None else weights
        reason = why_not(model)
        if reason is not None:
            what = "exact mode takes no step in C" if is_exact() or exact_in(model) else "this model has no step in C"
            raise InputError(f"{what}: {reason}; use the model itself")
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
        """Memory of the packed weights with their scales, which each step reads, but for experts that no row chose."""
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

    def call(
        self, tokens: Tokens, states: Tensor, batch: int, *, logits: bool = True, alike: bool = False
    ) -> Tensor | None:
        """The call of C code for these tokens: their logits (n_tokens, vocabulary), unless they are not wanted.

        states: the table of addresses; alike: see :func:`~statewise.decoding.call.call_step`
        """
        if is_exact():
            raise InputError(
                "a Decoder has no exact form; in exact mode use the model itself, and generate without weights"
            )
        program, n, n_threads = self._program, len(tokens.rows), native.n_threads()
        shared, local = program.widths
        scratch = torch.empty(n * (shared + n_threads * local), dtype=torch.float32, device="cpu")
        out = torch.empty(n, self.config.vocab_size, dtype=torch.float32, device="cpu") if logits else None
        n_instructions = len(program) if logits else self._n_body
        with way_of(self.weights, self.n_bytes, n, n_threads, whole=logits) as way:
            call_step(
                (self._instructions, self._buffers),
                n_instructions,
                scratch,
                (shared, local),
                tokens,
                states,
                batch,
                out,
                way,
                n_threads=n_threads,
                alike=alike,
            )
        return out

    def check(self, state: LanguageModelState, batch: int) -> None:
        """Errors:  InputError unless this is a state of the model for this many rows, which C can read."""
        if not isinstance(state, LanguageModelState):
            raise InputError(
                f"state must be a LanguageModelState or None, got {type(state).__name__}; "
                "begin with decoder.initial_state(batch)"
            )
        shapes = self._shapes
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

    def copied(self, state: LanguageModelState) -> LanguageModelState:
        """The state in memory of its own, without its graph, with room for the next token."""
        layers = tuple(table.copied(layer) for table, layer in zip(self._tables, state.layers))
        return LanguageModelState(copied(state.position), layers)

    def run(self, state: LanguageModelState) -> Running:
        """A sequence of steps that begins with a copy of this state, and then updates it in place."""
        position = getattr(state, "position", None)
        batch = len(position) if isinstance(position, Tensor) and position.ndim else 0
        return Running(self, state, batch=batch, shared=False)

    def ahead(self, state: LanguageModelState, most: int) -> Ahead:
        """Steps of several tokens, of which the last may be taken back: begins with a copy of this state.

        most: how many tokens of a row may be read until it is said which of them stay
        """
        return Ahead(self, state, most)

    def branches(self, state: LanguageModelState, n: int) -> DecoderBranches:
        """Steps of n continuations of each row, which share attention's keys and values of what they continue."""
        return DecoderBranches(self, state, n)


def why_not(model: nn.Module) -> str | None:
    """Why :class:`Decoder` cannot take this model here, in one line; None if it can."""
    if not native.available():
        return f"the C kernels are not available: {native.why_not()}"
    if is_exact() or exact_in(model):
        return "a model reads by its own step there, whose sums have one order"
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
                weight.flatten(0, -2).copy_(quantise(weight.flatten(0, -2), weights, group).weight())
            elif weights == "bfloat16":
                weight.copy_(weight.bfloat16())
    return changed


def _default_precision(model: nn.Module) -> str:
    if is_quantised(model):
        return STORED
    weight = next(model.parameters(), torch.empty(0))
    return "bfloat16" if weight.dtype == torch.bfloat16 else "float32"


def _repeated(layer: object, batch: int) -> object:
    return tree_map(lambda leaf: leaf.expand(batch, *leaf.shape[1:]), layer)
