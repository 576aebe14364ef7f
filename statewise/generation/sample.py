"""From logits to a token: the filters, in their order, and the draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.configuration import Config
from statewise.configuration.types import Count, NonNegative, Positive, Ratio, Share
from statewise.data.tokenizers import Tokenizer
from statewise.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Sampling(Config):
    """How a token is drawn from the logits z (vocabulary,) of one row. The filters act in this order:

    1. ``repetition_penalty`` r: z_i becomes z_i / r if z_i > 0, else z_i * r, for every id i read or written so far
       (Keskar et al. 2019, arXiv:1909.05858, sec. 4.1, with the sign taken care of). 1 changes nothing.
    2. ``temperature`` t: z becomes z / t. With t = 0 the id with the largest z is drawn (the smallest id among equals),
       and the later filters have no effect.
    3. ``top_k``: the ids whose z is at least the k-th largest stay, so ids equal to the k-th all stay.
    4. ``top_p``: with p = softmax(z) over what is left, sorted from the most likely (smaller ids first among equals),
       an id stays if those before it sum to less than ``top_p`` (Holtzman et al. 2020, arXiv:1904.09751).
    5. ``min_p``: with p = softmax(z) over what is left, an id stays if p_i >= min_p * max(p)
       (Nguyen et al. 2024, arXiv:2407.01082).

    Then the id is drawn from softmax(z) over what is left. The most likely id passes every filter.

    Errors:  ConfigError with the field, for temperature < 0, top_k < 1, top_p outside (0, 1], min_p outside [0, 1],
             repetition_penalty <= 0, and for values that are not finite numbers.
    """

    temperature: NonNegative = 1.0
    top_k: Count | None = None
    top_p: Share | None = None
    min_p: Ratio | None = None
    repetition_penalty: Positive = 1.0

    def apply(self, logits: Tensor, seen: Tensor) -> Tensor:
        """All steps but the draw: the filtered logits, minus infinity for what was filtered out.

        Shapes:  logits: (batch, vocabulary) float32 or wider   seen: (batch, vocabulary) bool
                 ->   (batch, vocabulary), of the logits' dtype or float64
        Cost:    O(batch * vocabulary), and a sort of each row for ``top_p``.
        """
        if self.repetition_penalty != 1:
            logits = penalise_repetition(logits, seen, self.repetition_penalty)
        if self.temperature == 0:
            greedy = logits.argmax(-1, keepdim=True)
            return torch.full_like(logits, -math.inf).scatter(-1, greedy, 0.0)
        if self.temperature != 1:
            # Anything added to a row leaves its softmax unchanged; with the maximum at 0, a temperature close to 0
            # drives the others to minus infinity and not the maximum to infinity. Float32 would take 1e-50 for 0.
            logits = (logits - logits.amax(-1, keepdim=True)).double() / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits

    def draw(self, logits: Tensor, seen: Tensor, uniforms: Tensor) -> Tensor:
        """The ids that :func:`draw` draws from the logits of :meth:`apply`; a greedy choice needs neither.

        Shapes:  as there   ->   (batch,) int64
        """
        if self.temperature == 0:
            if self.repetition_penalty != 1:
                logits = penalise_repetition(logits, seen, self.repetition_penalty)
            return logits.argmax(-1)
        return draw(self.apply(logits, seen), uniforms)


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """z_i / penalty if z_i > 0, else z_i * penalty, where seen.

    >>> penalise_repetition(torch.tensor([2.0, -2.0, 2.0]), torch.tensor([True, True, False]), 2.0)
    tensor([ 1., -4.,  2.])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """What is at least the k-th largest of its row stays.

    >>> keep_top_k(torch.tensor([1.0, 3.0, 2.0, 2.0]), 2)
    tensor([-inf, 3., 2., 2.])
    """
    smallest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The most likely ids stay, as few as reach the probability p together.

    >>> keep_top_p(torch.tensor([0.1, 0.6, 0.3]).log(), 0.8).exp()
    tensor([0.0000, 0.6000, 0.3000])
    """
    if p == 1:  # the sum of all but the last may round to 1
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= p
    return logits.masked_fill(outside.scatter(-1, order, outside), -math.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """An id stays if it has at least p times the probability of the most likely one.

    >>> keep_min_p(torch.tensor([0.1, 0.6, 0.3]).log(), 0.4).exp()
    tensor([0.0000, 0.6000, 0.3000])
    """
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The ids drawn from softmax(logits): the first id whose cumulative probability exceeds the row's number.

    Shapes:  logits: (batch, vocabulary), minus infinity for what must not be drawn
             uniforms: (batch,) float64 in [0, 1)   ->   (batch,) int64
    Numerics: softmax and sums in float64, so that one number a row is fine enough for any vocabulary.

    >>> draw(torch.tensor([[0.1, 0.6, 0.3]]).log(), torch.tensor([0.65], dtype=torch.float64))
    tensor([1])
    """
    probabilities = logits.double().softmax(-1)
    cumulative = probabilities.cumsum(-1)
    # A device that sums in parallel may leave steps where there should be none: hence the second condition.
    inside = (cumulative > uniforms[:, None] * cumulative[:, -1:]) & (probabilities > 0)
    # Where rounding leaves nothing inside (once in 2**53 draws), the likeliest id is as good as any.
    return torch.where(inside.any(-1), inside.to(torch.uint8).argmax(-1), probabilities.argmax(-1))


def ids_without_token(logits: Tensor, tokenizer: Tokenizer | None) -> Tensor | None:
    """(vocabulary,) bool, the ids that the tokenizer does not have; None if it has all."""
    n_ids = logits.shape[-1]
    if tokenizer is None or (tokenizer.vocab_size == n_ids and not tokenizer.gaps):
        return None
    found = torch.arange(n_ids, device="cpu") >= tokenizer.vocab_size
    found[list(tokenizer.gaps)] = True
    return found.to(logits.device)


def check_finite(log_probabilities: Tensor) -> None:
    """Errors:  InputError for NaN and infinity."""
    if not bool(log_probabilities.isfinite().all()):
        raise InputError("the logits are not finite: the model's parameters or the state hold NaN or infinity")
