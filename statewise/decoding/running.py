"""Steps one after the other, each of which writes over the state of the one before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise.decoding.call import one_of_each
from statewise.decoding.histories import check_positions
from statewise.decoding.states import addresses, plain
from statewise.errors import InputError
from statewise.models.language_model import LanguageModelState

if TYPE_CHECKING:
    from statewise.decoding.decoder import Decoder


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
            self._decoder.check(state, batch)
            state = state if shared else self._decoder.copied(state)
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
            self._decoder.check(state, 1)
            self._release()
            if self._shared:
                self._state, self._shared = self._decoder.copied(self._state), False
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
        with self._lock:
            return self._step(tokens, lengths, starts, logits)

    def _step(self, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None, logits: bool) -> Tensor | None:
        decoder = self._decoder
        batch = len(self._state.position)
        ids, active, restarts = checked_step(tokens, lengths, starts, batch, decoder.config.vocab_size)
        rows = torch.arange(batch, device="cpu") if active is None else active.nonzero()[:, 0].contiguous()
        if len(rows) == 0:
            return torch.zeros(batch, decoder.config.vocab_size, device="cpu") if logits else None
        for table, layer in zip(decoder._tables, self._state.layers):
            table.check(layer, rows, restarts)
        check_positions(self._state.position, rows, restarts, decoder.config.max_positions)
        before, after, places = self._places(every_row=active is None)
        positions = plain(before.position)  # held while C reads it
        if decoder._positions is not None:
            places[decoder._positions] = positions.data_ptr()
        read = decoder.call(one_of_each(ids, rows, restarts), places, batch, logits=logits)
        out = read if read is None or active is None else in_their_rows(read, rows, batch)
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


def checked_step(
    tokens: Tensor, lengths: Tensor | None, starts: Tensor | None, batch: int, vocab_size: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """What a step of one token of each row is given: ids (batch,) int64, active rows (None: all), and rows that
    restart, (batch,) bool.

    Errors:  InputError for shapes, lengths and ids that do not fit.
    """
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
        if low < 0 or high >= vocab_size:
            raise InputError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}; "
                f"use ids 0 to {vocab_size - 1}"
            )
    return ids, active, restarts


def in_their_rows(read: Tensor, rows: Tensor, batch: int) -> Tensor:
    """(n_rows, vocabulary) -> (batch, vocabulary), zeros for the rows that are not there."""
    return read.new_zeros(batch, read.shape[1]).index_copy(0, rows, read)
