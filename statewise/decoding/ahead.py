"""Several tokens of a row in one step of C code, of which the last may be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewise.decoding.call import Tokens, several_of_each
from statewise.decoding.histories import check_within
from statewise.decoding.states import table_of
from statewise.errors import InputError
from statewise.mixers.positions import document_positions, position_behind
from statewise.models.language_model import LanguageModelState
from statewise.operators.masks import build_masks, mask_time

if TYPE_CHECKING:
    from statewise.decoding.decoder import Decoder


class Ahead:
    """``logits = ahead.read(tokens)``, perhaps more of it, and then ``ahead.keep(counts)``: of the tokens that each row
    has read since the last ``keep`` its first ``counts[row]`` stay read, and the others were never there.

    A call reads several tokens of each row in one step, so that every weight is read once. What
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
        self._counts = torch.zeros(batch, dtype=torch.int64, device="cpu")
        self._starts: Tensor | None = None  # (batch, most) bool, where documents begin in what is not kept yet
        self._layouts: dict[int, Tokens] = {}  # of calls in which every row reads so many tokens
        self._begin(decoder.copied(state))

    def _begin(self, state: LanguageModelState) -> None:
        """Where what is read goes. The slots of a history move only here, where nothing can be taken back."""
        decoder = self._decoder
        tables = decoder._tables
        found = [table.ahead(layer, self._most) for table, layer in zip(tables, state.layers)]
        self._state = LanguageModelState(state.position, tuple(layer for layer, _, _ in found))
        self._keeps = [keep for _, _, keep in found]
        self._position = state.position.clone()
        self._addresses = table_of(tables, [entries for _, entries, _ in found], decoder._program.n_state)
        if decoder._positions is not None:
            self._addresses[decoder._positions] = self._position.data_ptr()
        rooms = [table.room(layer) for table, layer in zip(tables, self._state.layers)]
        self._room = min((room for room in rooms if room is not None), default=1 << 62)

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
        n_read = self._counts + length if counts is None else self._counts + counts
        if batch and int(n_read.max()) > self._most:
            raise InputError(f"{int(n_read.max())} tokens were read ahead, and most={self._most}; keep some first")
        if begins is None and counts is None:
            several, all_starts = self._of_all(ids), self._starts
        else:
            counts = n_read - self._counts
            begins = torch.zeros(ids.shape, dtype=torch.bool, device="cpu") if begins is None else begins
            several = several_of_each(ids, counts, self._counts, begins)
            all_starts = self._starts
            if all_starts is not None or bool(begins.any()):
                all_starts = self._none() if all_starts is None else all_starts
                all_starts = all_starts.index_put((several.rows, several.places), several.restarts)
        self._check_positions(n_read, all_starts)
        n_tokens, n_ids = len(several.ids), self._decoder.config.vocab_size
        if n_tokens == 0:
            return torch.zeros(batch, length, n_ids, device="cpu", dtype=torch.float32)
        found = self._decoder.call(several, self._addresses, batch, alike=True)
        assert found is not None  # they were asked for
        self._position.copy_(self._behind(n_read, all_starts)[0])
        before, self._counts, self._starts = self._counts, n_read, all_starts
        if n_tokens == batch * length:
            return found.unflatten(0, (batch, length))
        index = (several.rows, several.places - before[several.rows])
        return found.new_zeros(batch, length, n_ids).index_put(index, found)

    @torch.no_grad()
    def keep(self, counts: Tensor | Sequence[int]) -> None:
        """The first ``counts[row]`` tokens that each row has read since the last time stay read; the others do not.

        Cost:    a copy of the recurrent states.
        Errors:  InputError for more than a row has read.
        """
        kept = torch.as_tensor(counts, dtype=torch.int64, device="cpu")
        if kept.shape != self._counts.shape or bool(((kept < 0) | (kept > self._counts)).any()):
            raise InputError(
                f"keep takes how many of its tokens each row keeps: (batch,) of 0 to {self._counts.tolist()}, "
                f"not {kept.tolist()}"
            )
        position, began = self._behind(kept, self._starts)
        for keep in self._keeps:
            keep(kept, began)
        self._state.position.copy_(position)
        self._position.copy_(position)
        self._counts, self._starts = torch.zeros_like(kept), None
        self._room -= int(kept.max()) if len(kept) else 0
        if self._room < self._most:
            self._begin(self._state)

    def _behind(self, counts: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The position behind so many tokens of each row, and at which of them its document began; None: at none."""
        if starts is None:
            return self._state.position + counts, None
        return position_behind(self._state.position, counts, starts)

    def _none(self) -> Tensor:
        return torch.zeros(len(self._counts), self._most, dtype=torch.bool, device="cpu")

    def _of_all(self, ids: Tensor) -> Tokens:
        """All tokens of all rows, where no document begins."""
        batch, length = ids.shape
        if length not in self._layouts:
            counts = torch.full((batch,), length, dtype=torch.int64, device="cpu")
            none = torch.zeros(ids.shape, dtype=torch.bool, device="cpu")
            self._layouts[length] = several_of_each(ids, counts, torch.zeros_like(counts), none)
        layout = self._layouts[length]
        return layout._replace(ids=ids.flatten().contiguous(), places=layout.places + self._counts[layout.rows])

    def _checked(
        self, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Ids; how many of them each row reads, None: all; where documents begin, None: nowhere."""
        batch, n_ids = len(self._counts), self._decoder.config.vocab_size
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32) or tokens.ndim != 2:
            raise InputError(f"tokens must be a tensor of integers ({batch}, length), got {_described(tokens)}")
        masks = build_masks(tokens, lengths, starts)
        if len(tokens) != batch:
            raise InputError(f"the tokens have {len(tokens)} rows and the state {batch}; give the same number of both")
        ids = mask_time(tokens.to("cpu", torch.int64), masks.valid)
        low, high = torch.stack(ids.aminmax()).tolist() if ids.numel() else (0, 0)
        if low < 0 or high >= n_ids:
            wrong = low if low < 0 else high
            raise InputError(f"token id {wrong} is outside the vocabulary of {n_ids}; use ids 0 to {n_ids - 1}")
        return ids, masks.lengths, masks.starts

    def _check_positions(self, n_read: Tensor, starts: Tensor | None) -> None:
        """Errors:  InputError if a token that was read has no position in a table."""
        limits = [(self._state.position, self._decoder.config.max_positions)]
        for table, layer in zip(self._decoder._tables, self._state.layers):
            limits += table.positions(layer)
        for position, limit in limits:
            if limit is not None:
                given = self._none() if starts is None else starts
                positions, _ = document_positions(given.shape[1], position, given, device=position.device)
                read = torch.arange(given.shape[1], device="cpu") < n_read[:, None]
                check_within(positions[read], limit)


def _described(given: object) -> str:
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
