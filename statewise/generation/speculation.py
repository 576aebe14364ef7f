"""Speculative decoding: a small model drafts tokens, and the large one reads them all in one step.

What is written has the distribution of the large model alone. Sampled: a drafted x, drawn from q, is accepted with
probability min(1, p(x) / q(x)); if it is not, a token is drawn from the normalised max(p - q, 0) instead. So x is
written with q(x) min(1, p(x) / q(x)) = min(p(x), q(x)) as the drafted one, and with max(p(x) - q(x), 0) as the other,
since nothing is accepted with the sum of these over all x. Together that is p(x). Greedy: a drafted token is accepted
if it is the large model's choice.

Source: Leviathan et al. 2023, arXiv:2211.17192, alg. 1 and app. A.1; Chen et al. 2023, arXiv:2302.01318, alg. 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.generation.ahead import ReadsAhead
from statewise.generation.sample import Sampling, check_finite, draw


class Drafted(NamedTuple):
    """tokens: (batch, k) int64; probabilities: (batch, k, vocabulary) float64, from which each was drawn, or None if
    greedy; counts: (batch,) how many a row has, k at most."""

    tokens: Tensor
    probabilities: Tensor | None
    counts: Tensor


class Written(NamedTuple):
    """tokens, log_probabilities: (batch, k + 1); n_accepted: (batch,), after which one more token follows."""

    tokens: Tensor
    log_probabilities: Tensor
    n_accepted: Tensor


@dataclass
class Speculation:
    """One round after the other: draft, read, accept.

    unread:  of each row, the tokens at the end that the draft is still to read; the model is still to read the last
    seen:    (batch, vocabulary) bool, what was read, for the repetition penalty
    outside: (vocabulary,) bool, ids that are never drawn
    """

    model: ReadsAhead
    draft: ReadsAhead
    sampling: Sampling
    generators: Sequence[torch.Generator]
    unread: list[list[int]]
    seen: Tensor
    outside: Tensor | None
    document_token: int | None  # if it begins a new document
    n_drafted: int = 0
    n_accepted: int = 0

    def round(self, counts: Sequence[int], active: Sequence[bool]) -> Written:
        """The next tokens of the active rows, ``counts[row]`` + 1 of each at most."""
        counts = [count if on else 0 for count, on in zip(counts, active)]
        drafted = self._drafted(counts)
        last = torch.tensor([row[-1] for row in self.unread])[:, None]
        tokens = torch.cat([last, drafted.tokens], 1)
        lengths = (drafted.counts + 1).where(torch.tensor(active), 0)
        logits = self._read(self.model, tokens, lengths)
        written = self._accepted(logits, drafted, self._seen_behind(tokens))
        check_finite(written.log_probabilities)
        self._take(written, drafted, lengths)
        return written

    def _drafted(self, counts: Sequence[int]) -> Drafted:
        batch, most = len(counts), max(counts)
        tokens, probabilities, n = torch.zeros(batch, most, dtype=torch.int64), [], torch.tensor(counts)
        given = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in self.unread], batch_first=True)
        n_given = torch.tensor([len(row) for row in self.unread])
        rows = torch.arange(batch)
        seen = self._seen_with(self.seen, given[rows, n_given - 1])
        for i in range(most):
            lengths = n_given.where(n > i, 0)
            logits = self._allowed(self._read(self.draft, given, lengths)[rows, (lengths - 1).clamp(min=0)])
            if self.sampling.temperature == 0:
                drawn = self.sampling.draw(logits, seen, torch.empty(0))
            else:
                filtered = self.sampling.apply(logits, seen)
                drawn = draw(filtered, self._uniforms(n > i))
                probabilities.append(filtered.double().softmax(-1))
            tokens[:, i] = drawn.where(n > i, 0)
            given, n_given = tokens[:, i : i + 1], torch.ones_like(n_given)
            seen = self._seen_with(seen, tokens[:, i])
        return Drafted(tokens, torch.stack(probabilities, 1) if probabilities else None, n)

    def _accepted(self, logits: Tensor, drafted: Drafted, seen: Tensor) -> Written:
        """logits: (batch, k + 1, vocabulary), behind each token; seen: the same shape, or (batch, 1, vocabulary)."""
        batch, k = drafted.tokens.shape
        flat = self._allowed(logits.flatten(0, 1))
        seen_flat = seen.expand(-1, k + 1, -1).reshape(flat.shape)
        if self.sampling.temperature == 0:
            tokens = self.sampling.draw(flat, seen_flat, torch.empty(0)).unflatten(0, (batch, k + 1))
            n_accepted = _leading((tokens[:, :k] == drafted.tokens) & _first(k, drafted.counts))
        else:
            p = self.sampling.apply(flat, seen_flat).double().softmax(-1).unflatten(0, (batch, k + 1))
            tokens, n_accepted = self._sampled(p, drafted)
        own = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        return Written(tokens, own, n_accepted)

    def _sampled(self, p: Tensor, drafted: Drafted) -> tuple[Tensor, Tensor]:
        batch, k = drafted.tokens.shape
        rows, real = torch.arange(batch), _first(k, drafted.counts)
        n_accepted = torch.zeros(batch, dtype=torch.int64)
        last = p[:, 0]
        if drafted.probabilities is not None:
            q = drafted.probabilities
            index = drafted.tokens[..., None]
            ratio = (p[:, :k].gather(2, index) / q.gather(2, index))[..., 0]
            uniforms = torch.stack([self._uniforms(real[:, i]) for i in range(k)], 1)
            n_accepted = _leading((uniforms < ratio) & real)
            q = torch.cat([q.masked_fill(~real[..., None], 0.0), torch.zeros_like(p[:, :1])], 1)
            # Behind the last drafted token nothing was drafted: q is 0, and the token is drawn from p
            last = (p[rows, n_accepted] - q[rows, n_accepted]).clamp(min=0)
            last = torch.where(last.sum(-1, keepdim=True) > 0, last, p[rows, n_accepted])  # p is q, but for rounding
        more = draw(last.log(), self._uniforms(torch.ones(batch, dtype=torch.bool)))
        return torch.cat([drafted.tokens, more[:, None]], 1).scatter(1, n_accepted[:, None], more[:, None]), n_accepted

    def _take(self, written: Written, drafted: Drafted, lengths: Tensor) -> None:
        """Both models keep what was accepted."""
        accepted = written.n_accepted
        self.model.keep((accepted + 1).where(lengths > 0, 0))
        n_unread = torch.tensor([len(row) for row in self.unread])
        self.draft.keep((n_unread + accepted.minimum(drafted.counts - 1)).where(drafted.counts > 0, 0))
        for i, (row, n) in enumerate(zip(written.tokens.tolist(), accepted.tolist())):
            if not int(lengths[i]):
                continue
            if self.sampling.repetition_penalty != 1:
                self.seen[i, self.unread[i][-1:] + row[:n]] = True
            count = int(drafted.counts[i])
            # The draft has not read its last token, which is of use if it was accepted
            self.unread[i] = row[n - 1 : n + 1] if count and n == count else [row[n]]
            self.n_drafted += count
            self.n_accepted += n

    def _read(self, reader: ReadsAhead, tokens: Tensor, lengths: Tensor) -> Tensor:
        starts = None if self.document_token is None else tokens == self.document_token
        even = bool((lengths == tokens.shape[1]).all())
        return reader.read(tokens, lengths=None if even else lengths, starts=starts)

    def _allowed(self, logits: Tensor) -> Tensor:
        return logits if self.outside is None else logits.masked_fill(self.outside, -math.inf)

    def _uniforms(self, wanted: Tensor) -> Tensor:
        """(batch,), of each wanted row from its own generator; the others have 0."""
        found = torch.zeros(len(wanted), dtype=torch.float64)
        for row in wanted.nonzero()[:, 0].tolist():
            found[row] = torch.rand((), dtype=torch.float64, generator=self.generators[row])
        return found

    def _seen_with(self, seen: Tensor, tokens: Tensor) -> Tensor:
        return seen if self.sampling.repetition_penalty == 1 else seen.scatter(1, tokens[:, None], True)

    def _seen_behind(self, tokens: Tensor) -> Tensor:
        """(batch, tokens, vocabulary), or (batch, 1, vocabulary) where nobody asks."""
        if self.sampling.repetition_penalty == 1:
            return self.seen[:, None]
        found = [self.seen]
        for column in tokens.unbind(1):
            found.append(found[-1].scatter(1, column[:, None], True))
        return torch.stack(found[1:], 1)


def _first(k: int, counts: Tensor) -> Tensor:
    """(batch, k) bool, the first ``counts[row]`` of each row."""
    return torch.arange(k) < counts[:, None]


def _leading(accepted: Tensor) -> Tensor:
    """How many are True before the first that is not, of each row.

    >>> import torch
    >>> _leading(torch.tensor([[True, True, False], [False, True, True]]))
    tensor([2, 0])
    """
    return accepted.long().cumprod(1).sum(1)
