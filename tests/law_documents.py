"""The laws of rows of several lengths and of packed documents."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from law_signals import (
    detached,
    gradients,
    rows,
    same,
    signal,
    states,
    warm_state,
)
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.mixers.base import Mixer


def check_lengths(mixer: Mixer, length: int, atol: float) -> None:
    """A padded batch = its rows alone, with NaN in the padding and an empty row."""
    counts = sorted({length, length // 2, 1, 0}, reverse=True)
    counts = [*counts[::2], *counts[1::2]]  # no order that a mixer could lean on
    batch, lengths = len(counts), torch.tensor(counts)
    x, probe = signal(mixer, batch, length), signal(mixer, batch, 3).requires_grad_()
    for b, count in enumerate(counts):
        x[b, count:] = float("nan")
    x.requires_grad_()

    def alone(state: Any) -> list[Tensor]:
        outputs = []
        for b, count in enumerate(counts):
            own = None if state is None else rows(state, [b])
            y, own = mixer(x[b : b + 1, :count], own)
            outputs.append(y[0])
            if state is not None:
                outputs.append(mixer(probe[b : b + 1], own)[0][0])
        return outputs

    def padded(state: Any) -> list[Tensor]:
        y, after = mixer(x, state, lengths=lengths)
        outputs = []
        next_y = None if state is None else mixer(probe, after)[0]
        for b, count in enumerate(counts):
            outputs.append(y[b, :count])
            if next_y is not None:
                outputs.append(next_y[b])
        return outputs

    def stepped(state: Any) -> list[Tensor]:
        """Rows that end at different steps go on with lengths of 0."""
        steps = []
        for t, piece in enumerate(x.split(1, 1)):
            y, state = mixer(piece, state, lengths=(lengths > t).to(lengths))
            steps.append(y)
        y, next_y = torch.cat(steps, 1), mixer(probe, state)[0]
        return [part for b, count in enumerate(counts) for part in (y[b, :count], next_y[b])]

    for state in (None, *states(mixer, batch)):
        expected, actual = torch.cat(alone(state)), torch.cat(padded(state))
        same(actual, expected, atol, "a padded batch")
        inputs = (x, probe, state)
        expected_gradients = gradients(mixer, expected, inputs)
        assert all(grad.isfinite().all() for grad in expected_gradients)
        same(gradients(mixer, actual, inputs), expected_gradients, atol, "gradients of a padded batch")
        if state is not None:
            with torch.no_grad():
                same(torch.cat(padded(detached(state))), expected, atol, "a padded batch, without gradients")
                same(torch.cat(stepped(detached(state))), expected, atol, "a padded batch, step by step")


def check_starts(mixer: Mixer, length: int, atol: float) -> None:
    """Packed documents = each alone, with padding behind them, and nothing of the incoming state passes a start."""
    batch = 4
    counts = [length, length, max(1, length - 2), 0]
    wanted = ({length // 3, length // 3 + 1}, {0}, {0, length // 2, length - 1}, {0})
    begins = [sorted(t for t in times if t < length) for times in wanted]
    starts = torch.zeros(batch, length, dtype=torch.bool)
    for b, times in enumerate(begins):
        starts[b, times] = True  # some of them lie in the padding, where they mean nothing
    x, probe = signal(mixer, batch, length), signal(mixer, batch, 3).requires_grad_()
    for b, count in enumerate(counts):
        x[b, count:] = float("nan")
    x.requires_grad_()

    def alone(b: int, state: Any) -> list[Tensor]:
        outputs = []
        own = None if state is None else rows(state, [b])
        cuts = sorted({0, counts[b], *(t for t in begins[b] if t < counts[b])})
        for begin, end in itertools.pairwise(cuts):
            if begin in begins[b] and state is not None:
                own = mixer.initial_state(1)
            y, own = mixer(x[b : b + 1, begin:end], own)
            outputs.append(y[0])
        if state is not None:
            outputs.append(mixer(probe[b : b + 1], own)[0][0])
        return outputs

    def packed(state: Any, lengths: Tensor | None, batch: int) -> list[Tensor]:
        y, after = mixer(x[:batch], state, lengths=lengths, starts=starts[:batch])
        next_y = None if state is None else mixer(probe[:batch], after)[0]
        outputs = []
        for b in range(batch):
            outputs.append(y[b, : counts[b]])
            if next_y is not None:
                outputs.append(next_y[b])
        return outputs

    for n_rows, lengths in ((2, None), (batch, torch.tensor(counts))):
        for state in (None, *states(mixer, n_rows)):
            expected = torch.cat([part for b in range(n_rows) for part in alone(b, state)])
            actual = torch.cat(packed(state, lengths, n_rows))
            same(actual, expected, atol, "packed documents")
            inputs = (x, probe, state)
            same(
                gradients(mixer, actual, inputs),
                gradients(mixer, expected, inputs),
                atol,
                "gradients of packed documents",
            )
            if state is None:
                continue
            with torch.no_grad():
                own = detached(state)
                same(torch.cat(packed(own, lengths, n_rows)), expected, atol, "packed documents, without gradients")
                ys = []
                for t, piece in enumerate(x[:n_rows].split(1, 1)):
                    now = None if lengths is None else (lengths > t).long()
                    y, own = mixer(piece, own, lengths=now, starts=starts[:n_rows, t : t + 1])
                    ys.append(y)
                y, next_y = torch.cat(ys, 1), mixer(probe[:n_rows], own)[0]
                stepped = [part for b in range(n_rows) for part in (y[b, : counts[b]], next_y[b])]
                same(torch.cat(stepped), expected, atol, "packed documents, step by step")

    # Neither does a state that is broken, nor one that is huge.
    with torch.no_grad():
        state = detached(warm_state(mixer, 2))
        broken = pytree.tree_map(lambda x: torch.full_like(x, torch.nan) if x.is_floating_point() else x, state)
        first = torch.zeros(2, 5, dtype=torch.bool)
        first[:, 0] = True
        x = signal(mixer, 2, 5)
        expected = mixer(x)[0]
        y, after = mixer(x, broken, starts=first)
        same(y, expected, atol, "a start at the first position after a broken state")
        same(mixer(x, after)[0], mixer(x, mixer(x, mixer.initial_state(2))[1])[0], atol, "the state after it")
