"""Several tokens of a row in one step of C code, of which the last may be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise.decoding.call import several_of_each
from statewise.decoding.states import AttentionHistory, check_within, table_of
from statewise.errors import InputError
from statewise.mixers.positions import document_positions, position_behind
from statewise.models.language_model import LanguageModelState
from statewise.operators.masks import build_masks

if TYPE_CHECKING:
    from statewise.decoding.decoder import Decoder


class Ahead:
    """``logits = ahead.read(tokens)``, perhaps more of it, and then ``ahead.keep(counts)``: of the tokens that each row
    has read since the last ``keep`` its first ``counts[row]`` stay read, and the others were never there.

    A call reads several tokens of each row in one step, so that every weight is read once for all of them. What
    multiplies matrices takes each token for a row; the recurrences go through them in order, and leave a state behind
    each. A row's logits and states are bit for bit those of one token at a time, by itself.

    state: which is copied
    most:  how many tokens may be read between two ``keep``
    Cost:  of a call, every weight once; the states are written once for each token. Memory: ``most`` + 1 states of the
           recurrent layers; the histories of attention are shared by all of them.
    """

    def __init__(self, decoder: Decoder, state: LanguageModelState, most: int) -> None:
        batch = len(state.position)
        decoder.check(state, batch)
        self._decoder, self._most = decoder, most
        self._state = decoder.copied(state)
        self._counts = torch.zeros(batch, dtype=torch.int64, device="cpu")
        self._starts = torch.zeros(batch, most, dtype=torch.bool, device="cpu")
        self._behind: list[Any] = [None] * len(decoder._tables)
        self._begin()

    def _begin(self) -> None:
        """Where what is read next goes. The slots of a history move only now, when nothing can be taken back."""
        tables = self._decoder._tables
        layers = [table.with_room(layer, self._most) for table, layer in zip(tables, self._state.layers)]
        self._state = self._state._replace(layers=tuple(layers))
        self._behind = [table.ahead(*pair, self._most) for table, *pair in zip(tables, layers, self._behind)]
        self._position = self._state.position.clone()
        entries = [table.entries_ahead(*pair) for table, *pair in zip(tables, layers, self._behind)]
        self._addresses = table_of(tables, entries, self._decoder._program.n_state)
        if self._decoder._positions is not None:
            self._addresses[self._decoder._positions] = self._position.data_ptr()

    @property
    def state(self) -> LanguageModelState:
        """A copy of the state after the last ``keep``."""
        return self._decoder.copied(self.passing_state())

    def passing_state(self) -> LanguageModelState:
        """The state after the last ``keep``, to be copied or forgotten before the next, which writes over it."""
        return self._state

    @torch.no_grad()
    def read(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """The logits behind each token, (batch, length, vocabulary); 0 beyond a row's length.

        Shapes:  tokens: (batch, length) int64; lengths: (batch,) how many of them each row reads; starts:
                 (batch, length) bool, where documents begin
        Errors:  InputError for shapes, ids and lengths out of range, and more tokens than ``most``.
        """
        ids, counts, begins = self._checked(tokens, lengths, starts)
        batch, length = ids.shape
        n_read = self._counts + counts
        if batch and int(n_read.max()) > self._most:
            raise InputError(f"{int(n_read.max())} tokens were read ahead, and most={self._most}; keep some first")
        rows, columns = (torch.arange(length, device="cpu") < counts[:, None]).nonzero().unbind(1)
        all_starts = self._starts.index_put((rows, self._counts[rows] + columns), begins[rows, columns])
        self._check_positions(n_read, all_starts)
        if len(rows) == 0:
            return torch.zeros(batch, length, self._decoder.config.vocab_size, device="cpu", dtype=torch.float32)
        several = several_of_each(ids, counts, self._counts, begins)
        found = self._decoder.call(several, self._addresses, batch, alike=True)
        assert found is not None  # they were asked for
        self._counts, self._starts = n_read, all_starts
        self._position.copy_(position_behind(self._state.position, n_read, all_starts)[0])
        if len(rows) == batch * length:
            return found.unflatten(0, (batch, length))
        return found.new_zeros(batch, length, found.shape[-1]).index_put((rows, columns), found)

    @torch.no_grad()
    def keep(self, counts: Tensor | Sequence[int]) -> None:
        """Of what each row has read since the last time, its first ``counts[row]`` tokens stay read.

        Cost:    a copy of the recurrent states.
        Errors:  InputError for more than a row has read.
        """
        kept = torch.as_tensor(counts, dtype=torch.int64, device="cpu")
        if kept.shape != self._counts.shape or bool(((kept < 0) | (kept > self._counts)).any()):
            raise InputError(
                f"keep takes how many of its tokens each row keeps: (batch,) of 0 to {self._counts.tolist()}, "
                f"not {kept.tolist()}"
            )
        position, began = position_behind(self._state.position, kept, self._starts)
        parts = zip(self._decoder._tables, self._state.layers, self._behind)
        layers = tuple(table.kept(layer, after, kept, began) for table, layer, after in parts)
        self._state = LanguageModelState(position, layers)
        self._counts, self._starts = torch.zeros_like(kept), torch.zeros_like(self._starts)
        self._begin()

    def _checked(self, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, how many of them each row reads, and where documents begin."""
        batch, n_ids = len(self._counts), self._decoder.config.vocab_size
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32) or tokens.ndim != 2:
            raise InputError(f"tokens must be a tensor of integers ({batch}, length), got {_described(tokens)}")
        masks = build_masks(tokens, lengths, starts)
        if len(tokens) != batch:
            raise InputError(f"the tokens have {len(tokens)} rows and the state {batch}; give the same number of both")
        ids = tokens.to("cpu", torch.int64)
        counts = torch.full((batch,), ids.shape[1], dtype=torch.int64, device="cpu")
        counts = counts if masks.lengths is None else masks.lengths.to("cpu")
        read = ids[torch.arange(ids.shape[1], device="cpu") < counts[:, None]]
        if bool(((read < 0) | (read >= n_ids)).any()):
            raise InputError(f"a token id is outside the vocabulary of {n_ids}; use ids 0 to {n_ids - 1}")
        none = torch.zeros(ids.shape, dtype=torch.bool, device="cpu")
        return ids, counts, none if masks.starts is None else masks.starts.to("cpu")

    def _check_positions(self, n_read: Tensor, starts: Tensor) -> None:
        """Errors:  InputError if a token that was read has no position in a table."""
        limits = [(self._state.position, self._decoder.config.max_positions)]
        limits += [
            (layer.position, table.max_positions)
            for table, layer in zip(self._decoder._tables, self._state.layers)
            if isinstance(table, AttentionHistory)
        ]
        for position, limit in limits:
            if limit is not None:
                positions, _ = document_positions(starts.shape[1], position, starts, device=position.device)
                read = torch.arange(starts.shape[1], device="cpu") < n_read[:, None]
                check_within(positions[read], limit)


def _described(given: object) -> str:
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
