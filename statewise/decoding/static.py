"""A model's step on tensors that stay where they are: what a CUDA graph records, one graph a step for any hybrid."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.decoding.gpu_layers import by_kernels
from statewise.decoding.histories import check_positions
from statewise.decoding.static_history import (
    copied_with_room,
    histories,
    restarted,
    room,
    with_histories,
    without_histories,
)
from statewise.kernels import backend
from statewise.kernels.batching import nothing_read
from statewise.kernels.gpu.graphs import record
from statewise.mixers.attention import Attention
from statewise.mixers.kalman import Kalman
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.precision import full_precision

WIDE, NARROW = 1e-3, 5e-2  # of the largest number: what a replay and the call that it recorded may differ by
Recorder = Callable[[Callable[[], None], Callable[[], object], torch.device], Callable[[], None]]


class StaticRun:
    """``logits = run.step(tokens)``: one token of each row, and the state in place. As ``Decoder.run`` on the CPU.

    On a GPU a step is one launch: a graph of all kernels of all layers, recorded with the first step. Before it is
    trusted its first result, and its state, are held against those of the call that it recorded. A step that some rows
    do not take part in, or with which documents begin, is a second graph. A history without a window doubles when it is
    full, and the step is recorded again.

    Where Triton is asked for, layers that have kernels of a step take them (gpu_layers.py). The first such step is held
    against the modules', and if the two differ, you get a warning, and the modules go on.

    recorder: makes a graph of a step; None: the model is called each time, on the same tensors
    Shapes:   tokens: (batch, 1) int64, ids of the vocabulary   ->   logits (batch, vocabulary), float32 or wider
    Cost:     all rows together read every weight once; the states are written twice. Memory: a copy of the state.
    """

    def __init__(self, model: LanguageModel, state: LanguageModelState, *, recorder: Recorder | None = record) -> None:
        self._model = model
        self._recorder = recorder
        self._device = state.position.device
        self._limits = _limits(model)
        self._positions = state.position.cpu() if self._limits else None
        batch = len(state.position)
        self._tokens = torch.zeros(batch, 1, dtype=torch.int64, device=self._device)
        self._active = torch.ones(batch, dtype=torch.bool, device=self._device)
        self._restarts = torch.zeros_like(self._active)
        dtype = full_precision(model.head.weight.dtype)
        self._logits = torch.zeros(batch, model.config.vocab_size, dtype=dtype, device=self._device)
        self._state = copied_with_room(model, state)
        self._room = room(self._state)
        self._kernels = by_kernels(model, self._state)
        self._programs: dict[bool, Callable[[], None]] = {}

    def passing_state(self) -> LanguageModelState:
        """The state after the steps so far, to be copied or forgotten before the next step, which writes over it."""
        return self._state

    @property
    def is_recorded(self) -> bool:
        """Whether steps are graphs: not before the first, and not where a recording was refused."""
        return self._recorder is not None and bool(self._programs)

    @torch.inference_mode()
    def step(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Options as :meth:`statewise.decoding.Decoder.__call__`; the logits of rows of length 0 mean nothing.

        Errors:  InputError if a row reaches a position that the model has no vector for.
        """
        self._check_positions(lengths, starts)
        self._make_room()
        self._tokens.copy_(tokens)
        masked = lengths is not None or starts is not None
        if masked:
            self._active.fill_(True) if lengths is None else self._active.copy_(lengths > 0)
            self._restarts.zero_() if starts is None else self._restarts.copy_(starts[:, 0])
        if masked in self._programs:
            self._programs[masked]()
        else:
            self._programs[masked] = self._first(masked)
        return self._logits.clone()

    def _first(self, masked: bool) -> Callable[[], None]:
        """Takes a step as it is taken for the first time; how the next ones are."""
        if self._kernels is not None and not masked:
            found = self._first_by_kernels()
            if found is not None:
                return found
        compute, advance = partial(self._compute, masked), partial(self._advance, masked)
        if self._recorder is None:
            advance()
            return advance
        want = compute()
        try:
            replay = self._recorder(advance, compute, self._device)
            replay()
            reason = self._fault(want)
        except RuntimeError as error:  # torch.AcceleratorError is one
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if reason is None:
            return replay
        self._recorder = None
        self._commit(*want)
        warnings.warn(
            f"decoding is not recorded as a CUDA graph, and each kernel is launched from Python: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        return advance

    def _first_by_kernels(self) -> Callable[[], None] | None:
        """The same with the kernels of a step; None, and the state as it was, if they differ from the modules."""
        with backend.use("torch"):  # by nothing that the kernels of a step share
            want = self._compute(False)
        kept = self._kept()

        def rehearse() -> None:  # which writes over the state
            self._advance_by_kernels()
            self._restore(kept)

        try:
            step: Callable[[], None] = self._advance_by_kernels
            if self._recorder is not None:
                step = self._recorder(self._advance_by_kernels, rehearse, self._device)
            step()
            reason = self._fault(want)
        except Exception as error:  # whatever Triton, its compiler or the driver raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if reason is None:
            return step
        self._restore(kept)
        self._kernels = None
        warnings.warn(
            f"decoding takes the layers' modules, not the kernels of a step: {reason}", RuntimeWarning, stacklevel=2
        )
        return None

    def _advance_by_kernels(self) -> None:
        assert self._kernels is not None
        with nothing_read():
            after = self._kernels(self._tokens, with_histories(self._state), logits=self._logits)
        self._commit(self._logits, self._own(without_histories(after), False))

    def _kept(self) -> list[Tensor | None]:
        """Copies of the state; None of keys and values, of which a step writes to slots that nothing has looked at."""
        spared = {id(m) for history in histories(self._state) for m in (history.keys, history.values)}
        return [None if id(leaf) in spared else leaf.clone() for leaf in tree_leaves(self._state)]

    def _restore(self, kept: list[Tensor | None]) -> None:
        for leaf, copy in zip(tree_leaves(self._state), kept, strict=True):
            if copy is not None:
                leaf.copy_(copy)

    def _fault(self, want: tuple[Tensor, LanguageModelState]) -> str | None:
        """How what a replay has left behind differs from what it should be; None if it does not."""
        narrow = self._model.head.weight.dtype in (torch.bfloat16, torch.float16)
        tolerance = NARROW if narrow else WIDE
        for got, expected in zip(tree_leaves((self._logits, self._state)), tree_leaves(want), strict=True):
            if not expected.numel():
                continue
            got, expected = got.double(), expected.double()
            error = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
            if not error <= tolerance and bool(expected.isfinite().all()):
                return f"its first replay is off by {error:.1e}, and {tolerance:.0e} may be rounding"
        return None

    def _advance(self, masked: bool) -> None:
        self._commit(*self._compute(masked))

    def _compute(self, masked: bool) -> tuple[Tensor, LanguageModelState]:
        """The logits and the state after the step; of what is there, only slots behind the histories' ends change."""
        before = self._state
        if masked:  # a row that takes no part may be at a position that there is no vector for
            before = restarted(before, self._restarts | ~self._active)
        with nothing_read():
            features, after = self._model.features(self._tokens, with_histories(before))
        assert after is not None  # a state was given
        logits = self._model.head(features[:, -1])
        return logits.to(self._logits.dtype), self._own(without_histories(after), masked)

    def _own(self, after: LanguageModelState, masked: bool) -> LanguageModelState:
        """The same in memory of its own, so that it can be written over what it was made from, tensor by tensor; rows
        that take no part keep what they have."""
        ours = tree_leaves(self._state)
        stored = {leaf.untyped_storage()._cdata for leaf in ours}
        found = []
        for old, new in zip(ours, tree_leaves(after), strict=True):
            if new is not old:  # a buffer of keys or values, which is written to in its spare slots alone
                if masked:
                    new = new.where(self._active.view(-1, *[1] * (new.ndim - 1)), old)
                elif new.untyped_storage()._cdata in stored:
                    new = new.clone()
            found.append(new)
        return _unflatten(found, self._state)

    def _commit(self, logits: Tensor, after: LanguageModelState) -> None:
        if logits is not self._logits:
            self._logits.copy_(logits)
        for old, new in zip(tree_leaves(self._state), tree_leaves(after), strict=True):
            if new is not old:
                old.copy_(new)

    def _make_room(self) -> None:
        """Where a history is full: into larger buffers, or with a window to the front of those that there are."""
        if self._room is None:
            return
        if self._room == 0:
            larger = copied_with_room(self._model, self._state)
            pairs = list(zip(tree_leaves(self._state), tree_leaves(larger), strict=True))
            if all(old.shape == new.shape for old, new in pairs):
                for old, new in pairs:
                    old.copy_(new)
            else:
                self._state = larger
                self._programs.clear()  # they hold the old buffers
            self._room = room(self._state)
        assert self._room is not None
        self._room -= 1

    def _check_positions(self, lengths: Tensor | None, starts: Tensor | None) -> None:
        if self._positions is None:
            return
        active = torch.ones(len(self._positions), dtype=torch.bool) if lengths is None else lengths.cpu() > 0
        restarts = torch.zeros_like(active) if starts is None else starts[:, 0].cpu()
        rows = active.nonzero()[:, 0]
        if len(rows):
            for limit in self._limits:
                check_positions(self._positions, rows, restarts, limit)
        after = self._positions.masked_fill(restarts, 0) + 1
        self._positions = after.where(active, self._positions)


def why_not_recorded(model: LanguageModel) -> str | None:
    """Why a step of this model cannot be recorded as a graph, in one line; None if it can."""
    for i, block in enumerate(model.blocks):
        if any(isinstance(mixer, Kalman) for mixer in block.mixer.parts()):
            return f"layer {i} is a Kalman, whose step looks at its numbers"
    return None


def _limits(model: LanguageModel) -> tuple[int, ...]:
    """How many vectors there are of the model's positions, and of each layer's."""
    found = [model.config.max_positions]
    mixers = [mixer for block in model.blocks for mixer in block.mixer.parts()]
    found += [mixer.config.max_positions for mixer in mixers if isinstance(mixer, Attention)]
    return tuple(limit for limit in found if limit is not None)


def _unflatten(leaves: list[Tensor], like: Any) -> Any:
    from torch.utils._pytree import tree_structure, tree_unflatten

    return tree_unflatten(leaves, tree_structure(like))
