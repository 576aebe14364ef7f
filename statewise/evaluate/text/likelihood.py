"""The log-probabilities of many continuations of many contexts, of ids or of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.tokenizers import Tokenizer
from statewise.errors import DataError, InputError, NotFiniteError
from statewise.evaluate.text.perplexity import MAX_LOGITS
from statewise.evaluate.text.prefixes import Segment, chunks, prefix_tree, walk
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel, LanguageModelState


class Score(NamedTuple):
    """log_probability: of the continuation, in nats, a sum; is_greedy: whether each token is the most likely."""

    log_probability: float
    is_greedy: bool


class Request(NamedTuple):
    """Both at least one token."""

    context: Sequence[int]
    continuation: Sequence[int]


def score(
    model: LanguageModel,
    requests: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    batch_size: int = 16,
    share: bool = True,
    done: Callable[[int, Score], None] | None = None,
) -> list[Score]:
    """How likely each continuation is after its context: (context, continuation), ids, both at least one token.

    What the beginnings of several requests have in common is read once (see :func:`prefix_tree`); of the logits, only
    those that predict a token of a continuation are computed.

    batch_size: rows read together
    share:      False reads every request from its first token on: the definition, for comparison
    done:       called with the index of a request and its score as soon as it is known

    Cost:     a token of the tree is read once: for c choices of n tokens after a context of l tokens l + c n tokens
              and not c (l + n). Memory: what :func:`walk` holds, and 16 MB of logits.
    Numerics: log-softmax in float32 (or wider, as the model is), sums in float64.
    Errors:   InputError for a context or a continuation without tokens; NotFiniteError.
    """
    asked = [Request(*request) for request in requests]
    for i, (context, continuation) in enumerate(asked):
        if not len(context) or not len(continuation):
            empty = "continuation" if len(context) else "context"
            raise InputError(f"request {i} has a {empty} without tokens; give at least one")
    inputs = [[*context, *continuation[:-1]] for context, continuation in asked]
    roots = prefix_tree(inputs) if share else [Segment(x, 0, len(x), [i], [i]) for i, x in enumerate(inputs)]
    scorer = _Scorer(prepared(model), asked, done)
    with evaluation_mode(model), torch.inference_mode():
        walk(roots, model.initial_state(1), scorer.read, batch_size=batch_size)
    return [scorer.result(i) for i in range(len(asked))]


class _Scorer:
    """Sums what each segment says of the requests that pass through it."""

    def __init__(
        self, model: LanguageModel, requests: Sequence[Request], done: Callable[[int, Score], None] | None
    ) -> None:
        self.model, self.requests, self.done = model, requests, done
        self.sums = np.zeros(len(requests), np.float64)
        self.is_greedy = np.ones(len(requests), bool)

    def read(self, batch: list[Segment], state: LanguageModelState) -> LanguageModelState:
        # Padding changes what comes after it, so only the state, and costs time to be told apart. Where no state is
        # needed it may as well be read, unless it has to have positions in a table.
        goes_on = any(segment.children for segment in batch) or self.model.positions is not None
        for tokens, lengths, begin in chunks(batch, self.model.embedding.weight.device):
            features, after = self.model.features(tokens, state, lengths=lengths if goes_on else None)
            assert after is not None  # a state was given
            state = after
            wanted = [self._wanted(segment, begin, tokens.shape[1]) for segment in batch]
            if any(len(where) for where, _, _ in wanted):
                rows = np.concatenate([np.full(len(where), row) for row, (where, _, _) in enumerate(wanted)])
                self._add(features, rows, *(np.concatenate(part) for part in zip(*wanted)))
        for segment in batch:
            for request in segment.ends:
                if self.done is not None:
                    self.done(request, self.result(request))
        return state

    def result(self, request: int) -> Score:
        return Score(float(self.sums[request]), bool(self.is_greedy[request]))

    def _wanted(self, segment: Segment, begin: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The times of the chunk whose logits are asked for, the tokens they should predict, and the requests."""
        first = segment.begin + begin
        end = min(first + length, segment.end)
        times, targets, requests = [], [], []
        for i in segment.members:
            context, continuation = self.requests[i]
            offset = len(context) - 1  # the context's last token predicts the first of the continuation
            low = max(first, offset)
            if low < end:
                times.append(np.arange(low, end) - first)
                targets.append(np.asarray(continuation[low - offset : end - offset], np.int64))
                requests.append(np.full(end - low, i))
        nothing = np.zeros(0, np.int64)
        times_here, targets_here, requests_here = (
            np.concatenate([nothing, *part]) for part in (times, targets, requests)
        )
        return times_here, targets_here, requests_here

    def _add(
        self, features: Tensor, rows: np.ndarray, times: np.ndarray, targets: np.ndarray, requests: np.ndarray
    ) -> None:
        # The choices of a question ask for the same logits: those after its last token.
        places, which = np.unique(rows * features.shape[1] + times, return_inverse=True)
        flat = features.flatten(0, 1)
        at_once = max(1, MAX_LOGITS // self.model.config.vocab_size)
        for begin in range(0, len(places), at_once):
            part = places[begin : begin + at_once]
            here = np.flatnonzero((which >= begin) & (which < begin + len(part)))
            logits = self.model.head(flat[torch.from_numpy(part).to(flat.device)])
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            at = torch.from_numpy(which[here] - begin).to(flat.device)
            wanted = torch.from_numpy(targets[here]).to(flat.device)
            log_probabilities = logits[at, wanted] - logits.logsumexp(-1)[at]
            likeliest = logits.argmax(-1)[at] == wanted
            values = log_probabilities.double().cpu().numpy()
            if not np.isfinite(values).all():
                raise NotFiniteError("the model's predictions are not finite: its parameters hold NaN or infinity")
            np.add.at(self.sums, requests[here], values)
            np.logical_and.at(self.is_greedy, requests[here], likeliest.cpu().numpy())


def prepared(model: LanguageModel) -> LanguageModel:
    """What does not depend on the input is computed once."""
    return freeze(model) if has_operators_to_prepare(model) else model


def encode_pair(
    tokenizer: Tokenizer, context: str, continuations: Sequence[str], *, document_token: bool = True
) -> list[tuple[list[int], list[int]]]:
    """The ids of a context and of each of its continuations, cut as lm-eval's models cut them.

    A context and its continuation are tokenised together, and what the context alone makes is cut off, after the
    context's white space has gone over to the continuation: " the" is one token where "the" after " " is another.

    document_token: begin the context with it, and otherwise with the tokenizer's own ``prefix``. An empty context is
                    that, or the document token where there is none.

    Errors:  DataError for a continuation that is empty or adds no token to its context.
    """
    stripped = context.rstrip()
    begin = [tokenizer.document_token] if document_token else list(tokenizer.prefix)
    if not stripped and not begin:
        begin = [tokenizer.document_token]
    inside = tokenizer.encode(stripped) if stripped else []
    pairs = []
    for continuation in continuations:
        ids = tokenizer.encode(context + continuation)[len(inside) :]
        if not continuation or not ids:
            raise DataError(
                f"the continuation {continuation!r} adds no token to its context, so there is nothing to score; begin "
                "it with a space or another character that is its own token"
            )
        pairs.append((begin + inside, ids))
    return pairs


def keep_the_end(
    context: Sequence[int], continuation: Sequence[int], max_length: int | None
) -> tuple[Sequence[int], Sequence[int]]:
    """Without the beginning of a context that is too long: a prediction depends on ``max_length`` tokens at most.

    Errors:  DataError if the continuation alone is longer.

    >>> keep_the_end([1, 2, 3, 4], [5, 6], 3)
    ([3, 4], [5, 6])
    """
    if max_length is None:
        return context, continuation
    if len(continuation) > max_length:
        raise DataError(
            f"a continuation has {len(continuation)} tokens and max_length is {max_length}; raise max_length, "
            "or score whole texts"
        )
    return context[-(max_length + 1 - len(continuation)) :], continuation
