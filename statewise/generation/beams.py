"""Beam search: the best continuations so far are continued, and the best of these stay.

A continuation of t tokens, whose log-probabilities sum to s, has the score s / t^length_penalty. In each step the beams
continue with every token, and the most likely of these stay. One that ends is kept beside them, as one of the best that
have ended. The search is over where as many have ended as there are beams, and the most likely that is not ended
has no better score, at its length, than the worst of these.

Source: Graves 2012, arXiv:1211.3711, sec. 4; the penalty of length: Wu et al. 2016, arXiv:1609.08144, sec. 7, with t
        itself, as in ``transformers``, whose search this is with ``early_stopping=False``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.generation.branching import Branches
from statewise.generation.sample import check_finite


class Continuation(NamedTuple):
    """tokens, log_probabilities: of each token; score: by which it is compared; ended: at an end token"""

    tokens: list[int]
    log_probabilities: list[float]
    score: float
    ended: bool


@dataclass
class Search:
    """The beams of one prompt.

    scores: (beams,) the sums of the log-probabilities of those that go on; -inf: there is none yet
    """

    beams: int
    length_penalty: float
    scores: Tensor
    running: list[tuple[list[int], list[float]]]
    found: list[Continuation] = field(default_factory=list)
    done: bool = False

    @classmethod
    def begin(cls, beams: int, length_penalty: float) -> Search:
        scores = torch.full((beams,), -math.inf, dtype=torch.float64)
        scores[0] = 0.0
        return cls(beams, length_penalty, scores, [([], []) for _ in range(beams)])

    def step(self, log_probabilities: Tensor, ends: frozenset[int], *, last: bool) -> list[int]:
        """One token more, by their log-probabilities (beams, vocabulary) behind each beam. Returns from which beam each
        goes on; its token is the last of ``running``."""
        sums = self.scores[:, None] + log_probabilities.double()
        n_ids = sums.shape[1]
        most = min((1 + max(1, len(ends))) * self.beams, sums.numel())  # so many that enough of them go on
        best = sums.flatten().topk(most)
        parents: list[int] = []
        going_on: list[tuple[float, list[int], list[float]]] = []
        for place, (score, index) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            parent, token = divmod(index, n_ids)
            tokens, own = self.running[parent]
            ended = token in ends
            if ended or last:
                if place < self.beams and score > -math.inf:
                    self._find([*tokens, token], [*own, float(log_probabilities[parent, token])], score, ended)
            elif len(going_on) < self.beams:
                going_on.append((score, [*tokens, token], [*own, float(log_probabilities[parent, token])]))
                parents.append(parent)
        while len(going_on) < self.beams:  # a vocabulary of few ids
            going_on.append((-math.inf, [*self.running[0][0], 0], [*self.running[0][1], 0.0]))
            parents.append(0)
        self.scores = torch.tensor([score for score, *_ in going_on], dtype=torch.float64)
        self.running = [(tokens, own) for _, tokens, own in going_on]
        self.done = last or self._is_over(len(self.running[0][0]))
        return parents

    def best(self, n: int) -> list[Continuation]:
        return sorted(self.found, key=lambda one: -one.score)[:n]

    def _find(self, tokens: list[int], own: list[float], score: float, ended: bool) -> None:
        self.found.append(Continuation(tokens, own, self._score(score, len(tokens)), ended))
        self.found = self.best(self.beams)

    def _is_over(self, length: int) -> bool:
        likeliest = self._score(float(self.scores[0]), length)
        if len(self.found) < self.beams:
            return likeliest == -math.inf  # all that there are have ended
        return likeliest <= self.found[-1].score

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self.length_penalty)


@torch.inference_mode()
def search(
    logits: Tensor,
    make_branches: Callable[[], Branches],
    *,
    beams: int,
    length_penalty: float,
    max_new_tokens: int,
    ends: frozenset[int],
    outside: Tensor | None,
    document_token: int | None,
) -> list[Search]:
    """The searches of each prompt, to their end.

    logits:  (prompts, vocabulary), behind each
    outside: (vocabulary,) bool, ids that are never written; the others' log-probabilities count them
    document_token: if it begins a new document
    """
    device, n_prompts = logits.device, len(logits)
    searches = [Search.begin(beams, length_penalty) for _ in range(n_prompts)]
    logits = logits.repeat_interleave(beams, 0)
    branches: Branches | None = None
    for n_left in range(max_new_tokens - 1, -1, -1):
        log_probabilities = logits.log_softmax(-1).cpu()
        check_finite(log_probabilities.amax(-1))
        if outside is not None:
            log_probabilities = log_probabilities.masked_fill(outside.cpu(), -math.inf)
        parents = list(range(n_prompts * beams))
        for i, (one, own) in enumerate(zip(searches, log_probabilities.split(beams))):
            if not one.done:
                first = i * beams
                chosen = one.step(own, ends, last=n_left == 0)
                parents[first : first + beams] = [first + parent for parent in chosen]
        if all(one.done for one in searches):
            break
        if branches is None:
            branches = make_branches()
        elif parents != list(range(len(parents))):
            branches.take(torch.tensor(parents, device=device))
        tokens = torch.tensor([tokens[-1] for one in searches for tokens, _ in one.running], device=device)
        lengths = torch.tensor([0 if one.done else 1 for one in searches for _ in range(beams)], device=device)
        starts = None if document_token is None else (tokens == document_token)[:, None]
        logits = branches.step(
            tokens[:, None],
            lengths=None if bool(lengths.all()) else lengths,
            starts=starts if starts is not None and bool(starts.any()) else None,
        )
    return searches


def best_of(searches: Sequence[Search], n: int) -> list[Continuation]:
    """The n best of each prompt."""
    return [one for each in searches for one in each.best(n)]
