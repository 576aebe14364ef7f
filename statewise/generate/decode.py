"""The loop: read the prompt, then draw a token, hand it out, read it, and so on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.data.tokenizers import Tokenizer
from statewise.errors import InputError
from statewise.generate.options import check_integer, is_integer
from statewise.generate.prompt import Prompt, encode_prompt
from statewise.generate.sample import Sampling, draw
from statewise.generate.stopping import StopText, check_stop
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel, LanguageModelState

N_RECENT = 8  # tokens that the text of the next one may depend on: a character's bytes, a word's leading space


class Reading(NamedTuple):
    """What a model knows after reading, and all that generation needs to go on from there.

    A pytree of tensors, batch first, never mutated: hold it, save it, move it, go on from it as often as you like.

    logits: (batch, vocabulary) float32 or wider, of the token that comes next
    state:  the model's state after the last token that was read
    seen:   (batch, vocabulary) bool, the ids read so far, for the repetition penalty
    recent: (batch, 8) int64, the last ids read, -1 for none, with which the text goes on
    """

    logits: Tensor
    state: LanguageModelState
    seen: Tensor
    recent: Tensor


@dataclass(frozen=True, slots=True)
class Token:
    """One step of generation, for all rows. To keep it costs no more than the fields below.

    ids:               (batch,) int64, the token drawn; -1 for a row that had finished before
    log_probabilities: (batch,) float32 or wider, nats: the token's log-probability in the model's own distribution,
                       before any penalty, temperature or filter; 0 for a row that had finished before
    finished:          (batch,) bool, True once the document token or a stop string has ended the row
    text:              the text each row has gained, or None without a tokenizer. It may be empty (an incomplete
                       character, a possible beginning of a stop string) and the pieces of a row, joined, are its text
    """

    ids: Tensor
    log_probabilities: Tensor
    finished: Tensor
    text: list[str] | None
    _reading: list[Reading] = field(repr=False, compare=False)  # the stream empties it when it makes the next token

    @property
    def reading(self) -> Reading:
        """A copy of the Reading that the token was drawn from, while this is the stream's latest token.

        ``generate(model, state=token.reading)`` draws it anew, and ``generate(model, token.ids[:, None],
        state=token.reading)`` goes on after it.

        A stream keeps one Reading, not one a token: this one is let go when the next token is made. That of the last
        token stays for as long as the token does. A copy, once taken, is the caller's own.

        Errors:  InputError if the next token has been made.
        """
        if not self._reading:
            raise InputError(
                "this token's reading was let go when the next was made; read token.reading at once, "
                "or generate again with the same seed up to this token"
            )
        return _copy(self._reading[0])


def generate(
    model: LanguageModel,
    prompt: Prompt = None,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_at_document: bool = True,
    tokenizer: Tokenizer | None = None,
    document_token: int | None = None,
    state: Reading | LanguageModelState | None = None,
    lengths: Tensor | None = None,
    prefill_chunk: int = 2048,
) -> Iterator[Token]:
    """Yield up to ``max_new_tokens`` tokens as they come.

    The prompt is a text, ids (a list, or a tensor of one axis), a tensor (batch, length) with or without ``lengths``,
    or a list of texts and of rows of ids, which may differ in length. A text starts a document: the document token
    goes before it, so that it may be empty. Ids are taken as they are.

    temperature, top_k, top_p, min_p, repetition_penalty: see :class:`~statewise.generate.sample.Sampling`, which also
        says in which order they act. ``temperature=0`` is greedy.
    seed: row i draws from a generator of its own on the CPU, seeded with ``seed + i``: what a row says depends neither
        on the other rows nor on the device (but for rounding). None takes a seed from the operating system. Torch's
        global generators are neither read nor changed.
    stop: texts that end a row (they need a tokenizer). They are looked for in the generated text, across tokens; the
        text given out ends before the stop string that is complete first.
    stop_at_document: the document token ends a row. If False, it begins a new document, which knows nothing of the
        one before, and the row goes on.
    document_token: only needed without a tokenizer, whose own it is by default.
    state: continue from a :class:`Reading` (of :func:`read` or of a yielded token), or from a model's bare state,
        which needs at least one more token in each row. Nothing goes before a text that continues.
    prefill_chunk: the prompt is read this many tokens at a time, so its length costs no memory.

    The rows of a ragged batch say what they would say alone. Rows that have finished read nothing more, and the
    iteration ends when all have.

    Time-invariant mixers (S4, S4D, LSSL, LMU) discretise once, before the first token, as ``model.freeze()`` does:
    leave the parameters as they are until the last one.

    Cost:    one ``model`` call for every chunk of the prompt and every token but the last; constant memory and time
             per token, however many, if every mixer's state is bounded; to keep the tokens keeps no state but
             the last one's.
    Errors:  InputError, before anything is computed, for an option out of its range, an empty prompt, ids outside the
             vocabulary, a tokenizer of another vocabulary, a state of another batch; later, if logits are not finite.
    """
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    check_integer("max_new_tokens", max_new_tokens, 0)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63):
        raise InputError(f"seed={seed!r} is out of range; use an integer from 0 to 2**63 - 1, or None for any")
    stops = check_stop(stop)
    if stops and tokenizer is None:
        raise InputError("stop strings need a tokenizer; give tokenizer=")
    document_token = _document_token(model, tokenizer, document_token)
    tokens, row_lengths = _encode(model, prompt, state, tokenizer, document_token, lengths, prefill_chunk)
    seed = torch.Generator().seed() >> 1 if seed is None else seed

    def steps() -> Iterator[Token]:
        reader = freeze(model) if has_operators_to_prepare(model) else model
        reading = _read(reader, tokens, row_lengths, state, document_token, prefill_chunk)
        device, batch = reading.logits.device, len(row_lengths)
        generators = [torch.Generator().manual_seed((seed + i) % (1 << 63)) for i in range(batch)]
        rows = [_Row(tokenizer, stops, ids) for ids in reading.recent.tolist()]
        end = document_token if stop_at_document else None
        latest: list[Reading] = []
        previous: list[int] = []
        for n_left in range(max_new_tokens - 1, -1, -1):
            latest.clear()
            active = torch.tensor([not row.finished for row in rows], device=device)
            with evaluation_mode(reader), torch.inference_mode():
                if previous:
                    unread = torch.tensor(previous, device=device)[:, None]
                    reading = _extend(
                        reader,
                        reading,
                        unread.clamp(min=0),
                        active.long() if -1 in previous or not all(active) else None,
                        unread == document_token if end is None and document_token in previous else None,
                    )
                uniforms = torch.stack([torch.rand((), dtype=torch.float64, generator=g) for g in generators])
                drawn = draw(sampling.apply(reading.logits, reading.seen), uniforms.to(device))
                log_probabilities = reading.logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
            ids = drawn.where(active, -1)
            log_probabilities = log_probabilities.where(active, 0.0)
            if not bool(log_probabilities.isfinite().all()):
                raise InputError("the logits are not finite: the model's parameters or the state hold NaN or infinity")
            previous = ids.tolist()
            text = [row.feed(token, end, last=not n_left) for row, token in zip(rows, previous)]
            finished = torch.tensor([row.finished for row in rows], device=device)
            latest = [reading]
            yield Token(ids, log_probabilities, finished, None if tokenizer is None else text, latest)
            if all(row.finished for row in rows):
                return

    return steps()


def read(
    model: LanguageModel,
    prompt: Prompt = None,
    *,
    tokenizer: Tokenizer | None = None,
    document_token: int | None = None,
    state: Reading | LanguageModelState | None = None,
    lengths: Tensor | None = None,
    prefill_chunk: int = 2048,
) -> Reading:
    """Read a prompt and return what :func:`generate` goes on from: the arguments are those of ``generate``.

    ``generate(model, state=read(model, prompt))`` says the same as ``generate(model, prompt)``, also after the
    Reading was saved and loaded, so a long document needs to be read only once.

    Cost:    O(length) work; memory for ``prefill_chunk`` tokens; the logits of one position a chunk.
    Errors:  InputError as for ``generate``.
    """
    document_token = _document_token(model, tokenizer, document_token)
    tokens, row_lengths = _encode(model, prompt, state, tokenizer, document_token, lengths, prefill_chunk)
    return _copy(_read(model, tokens, row_lengths, state, document_token, prefill_chunk))


class _Row:
    """The text of one row, and whether the row has ended."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str], recent: Sequence[int]) -> None:
        self.finished = False
        self._stop = StopText(stops)
        self._decoder = None if tokenizer is None else tokenizer.stream_decoder()
        for token in recent:  # what comes next may complete a character, or be a word after a word
            if self._decoder is not None and token >= 0:
                self._decoder.feed(token)

    def feed(self, token: int, end: int | None, *, last: bool) -> str:
        if self.finished:
            return ""
        text = ""
        self.finished = token == end
        if not self.finished and self._decoder is not None:
            text = self._stop.feed(self._decoder.feed(token))
        if (self.finished or last) and self._decoder is not None and not self._stop.stopped:
            text += self._stop.feed(self._decoder.finish())
            text += self._stop.flush()
        self.finished = self.finished or self._stop.stopped
        return text


def _document_token(model: LanguageModel, tokenizer: Tokenizer | None, document_token: int | None) -> int | None:
    vocab_size = model.config.vocab_size
    if tokenizer is not None and tokenizer.vocab_size != vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model {vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    if document_token is None:
        return None if tokenizer is None else tokenizer.document_token
    if not (is_integer(document_token) and 0 <= document_token < vocab_size):
        raise InputError(f"document_token={document_token!r} is not an id of the model's vocabulary of {vocab_size}")
    return document_token


def _encode(
    model: LanguageModel,
    prompt: Prompt,
    state: Reading | LanguageModelState | None,
    tokenizer: Tokenizer | None,
    document_token: int | None,
    lengths: Tensor | None,
    prefill_chunk: int,
) -> tuple[Tensor, list[int]]:
    check_integer("prefill_chunk", prefill_chunk, 1)
    n_continued = None
    if isinstance(state, Reading):
        n_continued = len(state.logits)
        if state.logits.shape[1:] != (model.config.vocab_size,):
            raise InputError(
                f"the state's logits have the shape {tuple(state.logits.shape)} and the model a vocabulary of "
                f"{model.config.vocab_size}; it was read by another model"
            )
    elif isinstance(state, LanguageModelState):
        n_continued = len(state.position)
    elif state is not None:
        raise InputError(f"state must be a Reading or a LanguageModelState, not a {type(state).__name__}")
    return encode_prompt(
        prompt,
        vocab_size=model.config.vocab_size,
        tokenizer=tokenizer,
        document_token=document_token,
        lengths=lengths,
        n_continued=n_continued,
        may_be_empty=isinstance(state, Reading),
    )


def _read(
    model: LanguageModel,
    tokens: Tensor,
    row_lengths: Sequence[int],
    state: Reading | LanguageModelState | None,
    document_token: int | None,
    prefill_chunk: int,
) -> Reading:
    """Fold :func:`_extend` over chunks of the prompt."""
    batch, length = tokens.shape
    device = model.embedding.weight.device
    reading = state if isinstance(state, Reading) else _nothing_read(model, batch, state)
    with evaluation_mode(model), torch.inference_mode():
        for begin in range(0, length, prefill_chunk):
            chunk = tokens[:, begin : begin + prefill_chunk].to(device)
            n_real = torch.tensor(row_lengths).sub(begin).clamp(0, chunk.shape[1])
            ragged = bool((n_real < chunk.shape[1]).any())
            starts = None if document_token is None else chunk == document_token
            if starts is not None and state is None and begin == 0:
                starts[:, 0] = False  # a row that begins at rest needs no telling
            if starts is not None and not bool(starts.any()):
                starts = None
            reading = _extend(model, reading, chunk, n_real.to(device) if ragged else None, starts)
    return reading


def _nothing_read(model: LanguageModel, batch: int, state: LanguageModelState | None) -> Reading:
    state = model.initial_state(batch) if state is None else state
    weight = model.head.weight
    return Reading(
        logits=torch.zeros(batch, model.config.vocab_size, dtype=_wide(weight.dtype), device=weight.device),
        state=state,
        seen=torch.zeros(batch, model.config.vocab_size, dtype=torch.bool, device=weight.device),
        recent=torch.full((batch, N_RECENT), -1, device=weight.device),
    )


def _extend(
    model: LanguageModel, reading: Reading, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None
) -> Reading:
    """The Reading after these tokens (batch, length); a row of length 0 keeps its own."""
    features, state = model.features(tokens, reading.state, lengths=lengths, starts=starts)
    assert state is not None  # a state was given
    if lengths is None:
        logits = model.head(features[:, -1])
        seen = reading.seen.scatter(1, tokens, True)
        recent = torch.cat([reading.recent, tokens[:, -N_RECENT:]], dim=1)[:, -N_RECENT:]
        return Reading(logits.to(_wide(logits.dtype)), state, seen, recent)
    rows, read_any = torch.arange(len(tokens), device=tokens.device), (lengths > 0)[:, None]
    logits = model.head(features[rows, (lengths - 1).clamp(min=0)])
    # Padding repeats the row's first token, which is marked anyway if the row has any.
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    seen = reading.seen.scatter(1, tokens.where(real, tokens[:, :1]), True)
    back = torch.arange(N_RECENT, device=tokens.device) + lengths[:, None]
    return Reading(
        logits.to(_wide(logits.dtype)).where(read_any, reading.logits),
        state,
        seen.where(read_any, reading.seen),
        torch.cat([reading.recent, tokens], dim=1).gather(1, back),
    )


def _copy(reading: Reading) -> Reading:
    """Tensors like any other: those of inference mode can be neither trained with nor appended to outside of it."""
    copied: Reading = tree_map(torch.clone, reading)
    return copied


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or the dtype itself where that is wider."""
    return torch.promote_types(dtype, torch.float32)
