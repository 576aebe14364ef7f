"""The call of the C code that takes a step: which tokens it reads, and what it is given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise import native
from statewise.decoding.reading import Way, uses_vnni


class Tokens(NamedTuple):
    """The tokens that a step reads, those of a sequence one behind the other.

    ids, rows: (n_tokens,) int64, each token and the sequence of the batch that it belongs to
    places:    (n_tokens,) int64, how many tokens behind the state that is given it stands; 0 is the first
    begins:    (n_sequences + 1,) int64, where the tokens of each sequence begin, and n_tokens
    restarts:  (n_tokens,) bool, whether a document begins with the token
    """

    ids: Tensor
    rows: Tensor
    places: Tensor
    begins: Tensor
    restarts: Tensor


def one_of_each(ids: Tensor, rows: Tensor, restarts: Tensor) -> Tokens:
    """A token of each of these rows. ids, restarts: (batch,)

    >>> import torch
    >>> one_of_each(torch.tensor([5, 6, 7]), torch.tensor([0, 2]), torch.tensor([False, False, True])).ids
    tensor([5, 7])
    """
    n = len(rows)
    return Tokens(
        ids[rows],
        rows,
        torch.zeros(n, dtype=torch.int64, device="cpu"),
        torch.arange(n + 1, device="cpu"),
        restarts[rows],
    )


def several_of_each(ids: Tensor, counts: Tensor, places: Tensor, restarts: Tensor) -> Tokens:
    """The first ``counts[row]`` tokens of each row; places: (batch,) that of its first token.

    Shapes:  ids, restarts: (batch, length); counts, places: (batch,) int64

    >>> import torch
    >>> ids, none = torch.tensor([[5, 6], [7, 0]]), torch.zeros(2, 2).bool()
    >>> found = several_of_each(ids, torch.tensor([2, 1]), torch.tensor([0, 3]), none)
    >>> found.ids, found.rows, found.places, found.begins
    (tensor([5, 6, 7]), tensor([0, 0, 1]), tensor([0, 1, 3]), tensor([0, 2, 3]))
    """
    read = torch.arange(ids.shape[1], device="cpu") < counts[:, None]
    rows, steps = read.nonzero().unbind(1)
    some = counts[counts > 0]
    begins = torch.cat([some.new_zeros(1), some.cumsum(0)])
    return Tokens(ids[read], rows.contiguous(), places[rows] + steps, begins, restarts[read])


def call_step(
    tables: tuple[Tensor, Tensor],
    n_instructions: int,
    scratch: Tensor,
    widths: tuple[int, int],
    tokens: Tokens,
    states: Tensor,
    batch: int,
    logits: Tensor | None,
    way: Way,
    *,
    n_threads: int,
    alike: bool = False,
    vnni: bool | None = None,
) -> None:
    """Runs the first instructions of a program.

    tables:  its instructions and its buffers
    scratch: n_tokens (shared + n_threads local) floats, ``widths`` being (shared, local)
    states:  addresses of the states, of ``batch`` sequences
    logits:  (n_tokens, vocabulary), which is written to; None if no instruction does
    alike:   every token's numbers are those that it has alone, bit for bit
    vnni:    by default where it is; False to do without
    """
    instructions, buffers = tables
    native.function("decode_step", None, "plppllpplpllppppllllll")(
        instructions,
        n_instructions,
        buffers,
        scratch,
        *widths,
        tokens.rows,
        tokens.places,
        len(tokens.rows),
        tokens.begins,
        len(tokens.begins) - 1,
        batch,
        tokens.ids,
        tokens.restarts,
        states,
        logits,
        0 if logits is None else logits.shape[-1],
        n_threads,
        way.kind,
        way.ahead,
        uses_vnni() if vnni is None else vnni,
        alike,
    )
