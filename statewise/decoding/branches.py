"""Steps of continuations that share what they continue, in one call of C code each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from statewise.decoding.call import one_of_each
from statewise.decoding.histories import check_positions
from statewise.decoding.running import checked_step, in_their_rows
from statewise.decoding.states import table_of
from statewise.errors import InputError
from statewise.mixers.branched_history import BranchedHistory, Tails
from statewise.models.language_model import LanguageModelState

if TYPE_CHECKING:
    from statewise.decoding.decoder import Decoder

ROOM = 64  # tokens behind the prefix that there is room for at first


class DecoderBranches:
    """n continuations of each row of a state, row i * n + j being continuation j of row i.

    ``logits = branches.step(tokens)`` reads a token of each, and ``branches.take(parents)`` continues other ones.
    Attention's keys and values of the prefix stay where they are, and all share them; so do those behind it when rows
    part.

    Numerics: a row's logits are bit for bit those of :class:`~statewise.decoding.running.Running` with a copy of the
              state for each row.
    Cost:    of a step as of a ``Running`` with as many rows; of ``take`` a copy of the recurrent states. Memory: the
             recurrent states n times, and for attention n times what is written, but the prefix not once more.
    Errors:  InputError for a state of another model, and n below 1.
    """

    def __init__(self, decoder: Decoder, state: LanguageModelState, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"n={n!r} is out of range; use an integer of at least 1")
        batch = len(state.position)
        decoder.check(state, batch)
        self._decoder = decoder
        self._tails = Tails(batch * n, ROOM, "cpu")
        with torch.no_grad():
            layers = (table.branched(layer, n, self._tails) for table, layer in zip(decoder._tables, state.layers))
            self._layers: tuple[Any, ...] = tuple(layers)
            self._position = state.position.detach().repeat_interleave(n)
        self._addresses = self._table()

    def _table(self) -> Tensor:
        tables = self._decoder._tables
        entries = [table.branched_entries(layer) for table, layer in zip(tables, self._layers)]
        found = table_of(tables, entries, self._decoder._program.n_state)
        if self._decoder._positions is not None:
            found[self._decoder._positions] = self._position.data_ptr()
        return found

    @torch.no_grad()
    def step(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """One token of each row: (rows,) or (rows, 1) -> (rows, vocabulary). Options as
        :meth:`~statewise.decoding.Decoder.__call__`."""
        config, n_rows = self._decoder.config, len(self._position)
        ids, active, restarts = checked_step(tokens, lengths, starts, n_rows, config.vocab_size)
        rows = torch.arange(n_rows, device="cpu") if active is None else active.nonzero()[:, 0].contiguous()
        if len(rows) == 0:
            return torch.zeros(n_rows, config.vocab_size, device="cpu")
        for table, layer in zip(self._decoder._tables, self._layers):
            table.check(layer, rows, restarts)
        check_positions(self._position, rows, restarts, config.max_positions)
        if self._tails.n_used == self._tails.capacity:
            self._tails.grow()
            for part in self._parts():
                if isinstance(part, BranchedHistory):
                    part.grow()
            self._addresses = self._table()
        found = self._decoder.call(one_of_each(ids, rows, restarts), self._addresses, n_rows)
        assert found is not None  # they were asked for
        self._tails.n_used += 1
        position = self._position.masked_fill(restarts, 0) + 1
        self._position.copy_(position if active is None else position.where(active, self._position))
        return found if active is None else in_their_rows(found, rows, n_rows)

    @torch.no_grad()
    def take(self, parents: Tensor) -> None:
        """Row i continues where row ``parents[i]`` is, which continues the same row of the prefix."""
        self._tails.take(parents)
        for part in self._parts():
            if isinstance(part, BranchedHistory):
                part.take(parents)
            else:
                part.copy_(part[parents])
        self._position.copy_(self._position[parents])

    @torch.no_grad()
    def whole(self) -> LanguageModelState:
        """The state of each row by itself: a copy, also of the prefix."""
        layers = tree_map(
            lambda part: part.whole() if isinstance(part, BranchedHistory) else part.clone(),
            self._layers,
            is_leaf=_is_history,
        )
        return LanguageModelState(self._position.clone(), layers)

    def _parts(self) -> list[Any]:
        """The histories of all layers, and the tensors of all other states."""
        return tree_leaves(self._layers, is_leaf=_is_history)


def _is_history(part: Any) -> bool:
    return isinstance(part, BranchedHistory)
