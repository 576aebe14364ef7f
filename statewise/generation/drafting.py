"""The stream of speculative decoding: rounds of it, and from each row its tokens one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from statewise.decoding import Decoder
from statewise.errors import InputError
from statewise.generation.ahead import reading_ahead
from statewise.generation.options import check_integer
from statewise.generation.reading import Reading, read_again
from statewise.generation.sample import Sampling, check_finite, ids_without_token
from statewise.generation.speculation import Speculation
from statewise.generation.stopping import Endings, RowText
from statewise.generation.token import Token
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel, LanguageModelState

DRAFT_TOKENS = 4  # of a round, where nobody says how many


class Drafting:
    """The two models and how each reads.

    Errors:  InputError for a draft that is not a language model or has another vocabulary, and for ``weights`` that
             one of them cannot have.
    """

    def __init__(
        self,
        model: LanguageModel,
        draft: LanguageModel,
        n_tokens: int | None,
        weights: str | Decoder | None,
        draft_weights: str | Decoder | None,
        max_new_tokens: int,
    ) -> None:
        n_tokens = DRAFT_TOKENS if n_tokens is None else n_tokens
        check_integer("draft_tokens", n_tokens, 1)
        if not isinstance(draft, LanguageModel):
            raise InputError(f"draft must be a language model, got {type(draft).__name__}; load one with sw.load")
        sizes = model.config.vocab_size, draft.config.vocab_size
        if sizes[0] != sizes[1]:
            raise InputError(
                f"the draft has a vocabulary of {sizes[1]} and the model one of {sizes[0]}; "
                "draft with a model that was trained with the same tokenizer"
            )
        self.model, self.draft = (freeze(m) if has_operators_to_prepare(m) else m for m in (model, draft))
        self.n_tokens, self.max_new_tokens = n_tokens, max_new_tokens
        self.read_model = reading_ahead(model, weights, max_new_tokens)
        self.read_draft = reading_ahead(draft, draft_weights, max_new_tokens)


class Written(NamedTuple):
    """A token of a row, before it is its turn."""

    id: int
    log_probability: float
    text: str
    finished: bool


class Row:
    """The tokens of one row that were written and not yet yielded."""

    def __init__(self, text: RowText, ends: frozenset[int], n_most: int) -> None:
        self._text, self._ends, self.n_left = text, ends, n_most
        self.waiting: deque[Written] = deque()
        self.yielded = False  # its last token

    @property
    def active(self) -> bool:
        return self.n_left > 0 and not self._text.finished

    def write(self, tokens: Sequence[int], log_probabilities: Sequence[float]) -> None:
        for token, log_probability in zip(tokens, log_probabilities):
            if not self.active:
                return
            self.n_left -= 1
            text = self._text.feed(token, self._ends, last=not self.n_left)
            self.waiting.append(Written(token, log_probability, text, self._text.finished))

    def next(self) -> Written:
        if not self.waiting:
            return Written(-1, 0.0, "", self.yielded)
        written = self.waiting.popleft()
        self.yielded = written.finished
        return written


def drafted(
    drafting: Drafting,
    read_prompt: Callable[[LanguageModel, Reading | LanguageModelState | None, int | None], Reading],
    state: Reading | LanguageModelState | None,
    sampling: Sampling,
    endings: Endings,
    seeds: Sequence[int],
) -> Iterator[Token]:
    """Yields the tokens of :func:`~statewise.generate`. A row that is ahead of the others waits for them, with what it
    has written.

    read_prompt: (model, state, document token) -> what it knows behind the prompt
    """
    document_token = endings.document_token
    if not drafting.max_new_tokens:
        return
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    reading = read_prompt(drafting.model, state, document_token)
    first = _first_tokens(reading, sampling, endings, generators)
    device = reading.logits.device
    rows = [
        Row(RowText(endings.tokenizer, endings.stops, ids), endings.tokens, drafting.max_new_tokens)
        for ids in reading.recent.tolist()
    ]
    for row, token, log_probability in zip(rows, *first):
        row.write([token], [log_probability])
    speculation: Speculation | None = None
    written: list[list[int]] = [[] for _ in rows]
    latest: list[Reading | Callable[[], Reading]] = []
    while not all(row.yielded for row in rows) and len(written[0]) < drafting.max_new_tokens:
        latest.clear()
        while any(row.active and not row.waiting for row in rows):
            if speculation is None:
                speculation = _begin(drafting, read_prompt, reading, sampling, endings, generators, first[0])
            counts = [min(drafting.n_tokens, row.n_left - 1) for row in rows]
            with torch.inference_mode():
                more = speculation.round(counts, [row.active for row in rows])
            kept = more.log_probabilities.tolist()
            for row, tokens, own, n in zip(rows, more.tokens.tolist(), kept, more.n_accepted.tolist()):
                row.write(tokens[: n + 1], own[: n + 1])
        step = [row.next() for row in rows]
        begins = None if endings.stop_at_document else document_token
        again = partial(read_again, drafting.model, reading, [list(ids) for ids in written], begins)
        latest = [again]
        for ids, one in zip(written, step):
            ids.append(one.id)
        yield Token(
            torch.tensor([one.id for one in step], device=device),
            torch.tensor([one.log_probability for one in step], dtype=reading.logits.dtype, device=device),
            torch.tensor([one.finished for one in step], device=device),
            None if endings.tokenizer is None else [one.text for one in step],
            latest,
        )


def _first_tokens(
    reading: Reading, sampling: Sampling, endings: Endings, generators: Sequence[torch.Generator]
) -> tuple[list[int], list[float]]:
    """The tokens behind the prompt, and their log-probabilities."""
    outside = ids_without_token(reading.logits, endings.tokenizer)
    logits = reading.logits if outside is None else reading.logits.masked_fill(outside, -torch.inf)
    uniforms = torch.stack([torch.rand((), dtype=torch.float64, generator=g, device="cpu") for g in generators])
    drawn = sampling.draw(logits, reading.seen, uniforms.to(logits.device))
    own = reading.logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
    check_finite(own)
    return drawn.tolist(), own.tolist()


def _begin(
    drafting: Drafting,
    read_prompt: Callable[[LanguageModel, Reading | LanguageModelState | None, int | None], Reading],
    reading: Reading,
    sampling: Sampling,
    endings: Endings,
    generators: Sequence[torch.Generator],
    tokens: Sequence[int],
) -> Speculation:
    most = drafting.n_tokens + 1
    known = read_prompt(drafting.draft, None, endings.document_token).state
    outside = ids_without_token(reading.logits, endings.tokenizer)
    return Speculation(
        model=drafting.read_model(reading.state, most),
        draft=drafting.read_draft(known, most),
        sampling=sampling,
        generators=generators,
        unread=[[token] for token in tokens],
        seen=reading.seen.cpu().clone(),  # it is written to, and the reading is the caller's
        outside=None if outside is None else outside.cpu(),
        document_token=None if endings.stop_at_document else endings.document_token,
    )
