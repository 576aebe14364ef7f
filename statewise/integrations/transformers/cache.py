"""The state of a model, as the cache that ``transformers`` hands from call to call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import Cache

from statewise.errors import InputError
from statewise.models.language_model import LanguageModelState


class StatewiseCache(Cache):
    """What a model knows of each row of a batch. A call given one reads on from it and writes the new state into it.

    state:     the model's; None before the first call. It is never mutated, only replaced, so ``copy.copy(cache)``
               costs nothing and continues from where it was taken, however far the other has gone
    features:  (batch, d_model), the model's last features of each row: the next token's logits are their ``head``
    n_columns: how many columns of ids were read, padding included

    It can be repeated, selected from and reordered by row, as beams need it. It cannot be cut back to an earlier token,
    since a state holds no history: keep a copy from before instead.

    Errors:  InputError for ``crop`` and for the recording that assisted generation asks for.
    """

    state: LanguageModelState | None
    features: Tensor | None
    n_columns: int

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
        self.state, self.features, self.n_columns = None, None, 0

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
        return False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda leaf: leaf.index_select(0, beam_idx.to(leaf.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda leaf: leaf[indices.to(leaf.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda leaf: leaf.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise InputError(
                f"a state cannot be cut back by {abs(tokens_to_remove)} tokens: it holds no history; "
                "keep copy.copy(cache) from before them and continue from that"
            )

    def activate_past_recording(self) -> None:
        raise InputError(
            "assisted generation takes drafted tokens back, but a state has no history to do that; generate without "
            "an assistant, or with one that is not a Statewise model"
        )

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError("a StatewiseCache holds a state, not keys and values; give it to a StatewiseForCausalLM")

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state, self.features = tree_map(change, (self.state, self.features))
