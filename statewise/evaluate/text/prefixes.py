"""Sequences that begin alike: what they share is read once, and each continues from a copy of the state.

The choices of one question share the question, the questions of one task its examples. So the sequences are a tree,
whose segments are read batch by batch, parents before children. Plain attention caches make this a matter of copying
histories; a state of constant size makes it cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.errors import InputError
from statewise.models.language_model import SHORTEST_CHUNK

Carried = TypeVar("Carried")

# What is shared is read in a batch before that of what follows, and small batches are slow: it has to be worth it.
SHORTEST_SHARED = 8  # tokens
LEAST_SHARED = 1 / 8  # of the tokens that follow, on average
CHUNK = 2048  # tokens of all rows read at a time, so that what a layer makes of them stays in the cache


@dataclass(eq=False, slots=True)
class Segment:
    """The tokens from ``begin`` to ``end`` of some sequences, which are equal up to there.

    tokens:   one of these sequences, from its first token on
    members:  the indices of all that pass through the segment
    ends:     those of them that end with it
    children: how the others go on
    """

    tokens: Sequence[int]
    begin: int
    end: int
    members: Sequence[int]
    ends: Sequence[int]
    children: list[Segment] = field(default_factory=list)

    def __len__(self) -> int:
        return self.end - self.begin


def prefix_tree(sequences: Sequence[Sequence[int]], *, shortest: int = SHORTEST_SHARED) -> list[Segment]:
    """The segments that begin the sequences.

    Every sequence is the concatenation of the segments on its way, and ends with the last of them. A beginning that
    several share is a segment if it has ``shortest`` tokens and an eighth of what follows; else each has its own.

    Cost:    sorting the sequences, and one comparison of each token of neighbours
    Errors:  InputError for a sequence without tokens

    >>> (root,) = prefix_tree([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3]], shortest=2)
    >>> root.begin, root.end, root.ends, [(child.begin, child.end, child.ends) for child in root.children]
    (0, 3, [2], [(3, 4, [0]), (3, 4, [1])])
    """
    if not all(len(sequence) for sequence in sequences):
        raise InputError("a sequence without tokens has no beginning to share; give at least one token")
    roots: list[Segment] = []
    # Not by recursion: a thousand texts, each the beginning of the next, are a tree a thousand deep.
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    pending = [(order, 0, roots)] if order else []
    while pending:
        members, begin, siblings = pending.pop()
        first, last = sequences[members[0]], sequences[members[-1]]
        # In order, what the first and the last share is shared by all between them.
        common = _common_length(first, last, begin)
        alike = common == len(last)
        follow = sum(len(sequences[i]) - common for i in members) / len(members)
        if alike or common - begin >= max(shortest, LEAST_SHARED * follow):
            segment = Segment(first, begin, common, members, [i for i in members if len(sequences[i]) == common])
            siblings.append(segment)
            members, begin, siblings = members[len(segment.ends) :], common, segment.children
        groups = groupby(members, partial(_token, sequences, common))
        pending += reversed([(list(group), begin, siblings) for _, group in groups])
    return roots


def walk(
    roots: Sequence[Segment],
    carried: Carried,
    read: Callable[[list[Segment], Carried], Carried],
    *,
    batch_size: int,
) -> None:
    """Read every segment once, in batches of at most ``batch_size``, after its parent and from its parent's state.

    carried: what goes along the sequences, a pytree of tensors, batch first; given for one row that has read nothing
    read:    takes segments and what goes into them, a row for each, and returns what comes out. It may not change what
             it was given

    A batch goes down to the ends of its sequences before the next begins, so that no more rows are held than the tree
    is deep times the children of a batch. Only segments of like length are read together, since the longest sets the
    time; those with children come first, so that few batches mix them with those whose state nobody needs.
    """
    pending: list[tuple[list[Segment], Tensor, Any]] = []

    def push(segments: Sequence[Segment], parents: Sequence[int], state: Any) -> None:
        order = sorted(range(len(segments)), key=lambda i: (not segments[i].children, -len(segments[i])))
        pending.append(([segments[i] for i in order], torch.tensor([parents[i] for i in order]), state))

    if roots:
        push(roots, [0] * len(roots), carried)
    while pending:
        segments, parents, state = pending.pop()
        n = _alike(segments[:batch_size])
        if len(segments) > n:
            pending.append((segments[n:], parents[n:], state))
        batch = segments[:n]
        after = read(batch, select(state, parents[:n]))
        children = [(child, row) for row, segment in enumerate(batch) for child in segment.children]
        if children:
            push([child for child, _ in children], [row for _, row in children], after)


def select(carried: Carried, rows: Tensor | Sequence[int]) -> Carried:
    """These rows of every tensor, copied."""
    index = torch.as_tensor(rows)

    def taken(leaf: Tensor) -> Tensor:
        return leaf.index_select(0, index.to(leaf.device))

    selected: Carried = tree_map(taken, carried)
    return selected


class Chunk(NamedTuple):
    """The next tokens of a batch of segments, right-padded.

    tokens:    (rows, length) int64
    lengths:   (rows,) how many of them are real, 0 for a segment that has ended; None: all are
    begin:     of the first of them in its segment
    """

    tokens: Tensor
    lengths: Tensor | None
    begin: int


def chunks(batch: Sequence[Segment], device: torch.device, *, n_tokens: int = CHUNK) -> Iterator[Chunk]:
    """A batch of segments, about ``n_tokens`` at a time, but no fewer than 64 of each row if it is that long."""
    each = max(min(n_tokens, SHORTEST_CHUNK), n_tokens // len(batch))
    for begin in range(0, max(map(len, batch)), each):
        rows = []
        for segment in batch:
            here = segment.begin + begin
            rows.append(torch.tensor(segment.tokens[here : min(here + each, segment.end)], dtype=torch.int64))
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        ragged = bool((lengths < tokens.shape[1]).any())
        yield Chunk(tokens.to(device), lengths.to(device) if ragged else None, begin)


def _alike(segments: Sequence[Segment]) -> int:
    """How many at the front are about as long as the first, which is the longest of those with or without children."""
    longest = len(segments[0])
    least = min(longest * 3 // 4, longest - SHORTEST_CHUNK)
    return next((i for i, segment in enumerate(segments) if not least <= len(segment) <= longest), len(segments))


def _token(sequences: Sequence[Sequence[int]], at: int, i: int) -> int:
    """The token of a sequence there, or -1 where it has ended."""
    return sequences[i][at] if len(sequences[i]) > at else -1


def _common_length(a: Sequence[int], b: Sequence[int], begin: int) -> int:
    """How many tokens both begin with; the first ``begin`` are known to be equal."""
    n = min(len(a), len(b))
    return next((i for i in range(begin, n) if a[i] != b[i]), n)
