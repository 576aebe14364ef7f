"""The state of a model, as the cache that ``transformers`` hands from call to call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import Cache

from statewise.errors import InputError
from statewise.models.language_model import LanguageModelState
from statewise.models.rewinding import RewindableState, rewindable

EVERYTHING = 1 << 62  # tokens


class StatewiseCache(Cache):
    """What a model knows of each row of a batch. A call given one reads on from it and writes the new state into it.

    state:     the model's; None before the first call. It is never mutated, only replaced, so ``copy.copy(cache)``
               costs nothing and continues from where it was taken, however far the other has gone
    features:  (batch, d_model), the model's last features of each row: the next token's logits are their ``head``
    n_columns: how many columns of ids were read, padding included

    It can be repeated, selected from and reordered by row, as beams need it. It can be cut back, ``crop``, to any of
    the tokens since ``activate_past_recording`` or the latest ``crop``: the inputs of the recurrences are kept for it,
    see :class:`~statewise.RewindableState`. Without the recording, keep a copy from before instead.

    Errors:  InputError for ``crop`` by more than was recorded, or by a positive number.
    """

    state: LanguageModelState | None
    features: Tensor | None
    n_columns: int
    recording: bool

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.reset()

    def __deepcopy__(self, memo: dict[int, Any]) -> StatewiseCache:
        return copy.copy(self)  # nothing in it is ever written to, so there is nothing deeper to copy

    def __repr__(self) -> str:
        return f"StatewiseCache(batch_size={self.batch_size}, n_columns={self.n_columns})"

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state.layers)

    def reset(self) -> None:
        self.state, self.features, self.n_columns, self.recording = None, None, 0, False
        self._past: RewindableState | None = None
        self._columns: list[tuple[Tensor, Tensor]] = []  # of what was recorded: features, and whether it was read

    def readable(self) -> LanguageModelState | RewindableState | None:
        """What the next call reads on from."""
        if not self.recording or self.state is None:
            return self.state
        if self._past is None or self._past.state is not self.state:  # rows were reordered, or nothing was read yet
            self._record()
        return self._past

    def advance(self, state: Any, features: Tensor, real: Tensor | None) -> None:
        """What a call has read. features: (batch, columns, d_model); real: which columns were read; None: all"""
        if isinstance(state, RewindableState):
            real = features.new_ones(features.shape[:2], dtype=torch.bool) if real is None else real
            self._past, self._columns = state, [*self._columns, (features, real)]
            state = state.state
        self.state, self.n_columns = state, self.n_columns + features.shape[1]
        self.features = features[:, -1].clone()  # a view would keep all of them

    def _record(self) -> None:
        """From here on, what is read can be taken back, however much it is."""
        assert self.state is not None
        assert self.features is not None
        self._past = rewindable(self.state, last=EVERYTHING)
        self._columns = [(self.features[:, None], torch.zeros_like(self.features[:, :1], dtype=torch.bool))]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.n_columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # as theirs say for no bound

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.n_columns + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self.state is not None

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else len(self.state.position)

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        return self.recording

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda leaf: leaf.index_select(0, beam_idx.to(leaf.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda leaf: leaf[indices.to(leaf.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda leaf: leaf.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise InputError(
                f"crop({tokens_to_remove}): expected 0 or a negative number; crop(-{tokens_to_remove}) takes that many "
                "tokens back"
            )
        n_removed = -tokens_to_remove
        n_recorded = sum(real.shape[1] for _, real in self._columns) - 1
        if n_removed and (self._past is None or self._past.state is not self.state or n_removed > n_recorded):
            raise InputError(
                f"a state cannot be cut back by {n_removed} tokens that were not recorded; call "
                "activate_past_recording before they are read, or keep copy.copy(cache) from before them"
            )
        if self._past is None or self.state is None:
            return
        if n_removed:
            features, real = (torch.cat(columns, 1) for columns in zip(*self._columns))
            self.state = self._past.at(real[:, -n_removed:].sum(1))
            self.features, self.n_columns = features[:, -1 - n_removed].clone(), self.n_columns - n_removed
        self._record()

    def activate_past_recording(self) -> None:
        self.recording = True

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError("a StatewiseCache holds a state, not keys and values; give it to a StatewiseForCausalLM")

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state, self.features = tree_map(change, (self.state, self.features))
