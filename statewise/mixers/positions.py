"""The position of a token in its document, and learned vectors for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statewise.errors import InputError
from statewise.kernels.batching import may_read, whole
from statewise.operators.folding import is_any


def document_positions(
    length: int, before: Tensor | None, starts: Tensor | None, *, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """The position of each token within its document, and the step at which that began.

    Shapes:  before: (batch,) tokens of the document that were read before this call; None for none
             starts: (batch, length) bool, where documents begin; None for nowhere
             -> position (batch or 1, length), and (batch, length) the step of the start, -1 if before the call; None
             without ``starts``
    """
    time = torch.arange(length, device=device)
    position = time[None] if before is None else before[:, None] + time
    if starts is None:
        return position, None
    began = torch.where(starts, time, -1).cummax(1).values
    return torch.where(began >= 0, time - began, position), began


def position_behind(position: Tensor, counts: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The position of each row behind ``counts`` more tokens, and at which of them its document began (-1: before).

    Shapes:  position, counts: (batch,); starts: (batch, length) bool, where documents begin
    """
    positions, began = document_positions(starts.shape[1], position, starts, device=position.device)
    assert began is not None  # starts were given
    last = (counts - 1).clamp(min=0)[:, None]
    some = counts > 0
    after, step = positions.gather(1, last)[:, 0] + 1, began.gather(1, last)[:, 0]
    return torch.where(some, after, position), torch.where(some, step, -1)


class LearnedPositions(nn.Embedding):
    """A table of vectors, one for each position: positions (batch or 1, length) -> (batch or 1, length, d_model).

    offset:  rows before that of position 0, which no position has
    """

    def __init__(self, n_positions: int, d_model: int, *, offset: int = 0) -> None:
        self.offset = offset
        super().__init__(n_positions + offset, d_model)

    @property
    def n_positions(self) -> int:
        return self.num_embeddings - self.offset

    def forward(self, position: Tensor, *, lengths: Tensor | None = None, at_most: int | None = None) -> Tensor:
        """The vectors of these positions; steps beyond ``lengths`` (batch,) may have any.

        at_most: how long a document can be at most, if that is known without looking: it saves a wait for the device.
                 While compiling nothing is looked at, and a position that is not there fails in the lookup.
        Errors:  InputError that names the first row that goes furthest, if that is beyond the table, and for positions
                 below 0.
        """
        limit = self.n_positions
        if at_most is not None and not is_any(at_most) and at_most <= limit:
            return super().forward(position + self.offset if self.offset else position)
        if lengths is not None:
            real = torch.arange(position.shape[1], device=position.device) < lengths[:, None]
            position = torch.where(real, position, 0)
        if may_read(position):
            lowest, highest = torch.stack(whole(position).aminmax()).tolist() if position.numel() else (0, 0)
            if highest >= limit:
                row = int(whole(position).amax(-1).flatten().argmax())
                raise InputError(
                    f"row {row} reaches position {highest}, but max_positions={limit} "
                    f"gives positions 0 to {limit - 1}; use shorter documents or a larger max_positions"
                )
            if lowest < 0:
                raise InputError(
                    f"the state is damaged: a row is at position {lowest}; begin with initial_state(batch)"
                )
        return super().forward(position + self.offset if self.offset else position)
