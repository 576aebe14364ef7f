"""The loop: read the prompt, draw a token, yield it, read it, and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.decoding import Decoder
from statewise.errors import ConfigError, InputError
from statewise.generation.branching import Branching
from statewise.generation.drafting import Drafting, drafted
from statewise.generation.options import check_integer, is_integer
from statewise.generation.prompt import Prompt, encode_prompt
from statewise.generation.reading import Reading, copied, extend, nothing_read
from statewise.generation.sample import Sampling, check_finite, ids_without_token
from statewise.generation.stepping import Step, stepping
from statewise.generation.stopping import Endings, RowText, check_stop
from statewise.generation.token import Token
from statewise.generation.trees import Tree, best, searched
from statewise.kernels.exact.switch import exact_throughout
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import SHORTEST_CHUNK, LanguageModel, LanguageModelState


@exact_throughout
def generate(
    model: LanguageModel,
    prompt: Prompt = None,
    *,
    max_new_tokens: int = 256,
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
    weights: str | Decoder | None = None,
    draft: LanguageModel | None = None,
    draft_tokens: int | None = None,
    draft_weights: str | Decoder | None = None,
    n: int = 1,
    best_of: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
) -> Iterator[Token]:
    """Yield up to ``max_new_tokens`` tokens as they come.

    The prompt is a text, ids (a list, or a tensor of one axis), a tensor (batch, length) with or without ``lengths``,
    or a list of texts and of rows of ids, which may differ in length. A text starts a document: the document token
    goes before it, so it may be empty. With the tokenizer of a published model (one with ``conventions``) it is
    encoded as ``transformers`` would: names of special tokens become these tokens, and the tokenizer adds what it
    usually adds to a text. Ids are used as they are.

    temperature, top_k, top_p, min_p, repetition_penalty: see :class:`~statewise.generation.sample.Sampling`, which also
        says in which order they act. ``temperature=0`` is greedy.
    seed: row i draws from its own generator on the CPU, seeded with ``seed + i``. So a row depends neither on the other
        rows nor on the device (except for rounding). None uses a seed from the operating system. Torch's global
        generators are neither read nor changed.
    stop: texts that end a row (they need a tokenizer). They are searched for in the generated text, across tokens; the
        text that you get ends before the stop string that is complete first.
    stop_at_document: the document token ends a row. If False, it begins a new document, which does not depend on the
        one before, and the row goes on. With a published tokenizer any of the model's own end tokens ends a row; if
        False, the model keeps its state after one.
    document_token: only needed without a tokenizer; by default the tokenizer's own.
    state: continue from a :class:`Reading` (from :func:`read` or a yielded token), or from a model's bare state, which
        needs at least one more token in each row. A text that continues gets no document token.
    prefill_chunk: the prompt is read about this many tokens at a time, counting all rows (but at least 64 of each row
        that has as many), so its length costs no memory.

    weights: the precision of the matrices for the tokens after the first: "float32", "bfloat16", "int8", "int4", or a
        :class:`~statewise.decoding.Decoder` that you made of this model. The model itself reads the prompt. By default
        they are as the model has them. On a GPU see :func:`~statewise.decoding.narrowed`.

    draft: a smaller model with the same vocabulary, for speculative decoding: it drafts ``draft_tokens`` tokens (4),
        which the model reads in one step, and of which those stay that it might have written itself. ``temperature=0``
        writes the same tokens as without; otherwise they have the same distribution, but another ``draft`` draws
        others from the same seed. The draft reads the prompt too, but nothing of a ``state``.
    draft_weights: as ``weights``, for the draft

    n: continuations of each row; those of row i are the rows i * n to i * n + n - 1 of each Token. The prompt is read
        once, and attention's keys and values of it are there once, whatever n.
    best_of: write so many, and give the ``n`` with the highest mean log-probability, the best first. They come when all
        have ended, one token after the other as without.
    beams: search for the most likely continuations with this many beams, and give the ``n`` best of them. The score of
        one of t tokens, whose log-probabilities sum to s, is s / t ** length_penalty, and the search ends as that of
        ``transformers`` with ``early_stopping=False``. Nothing is drawn, so options of sampling are refused.
    length_penalty: of ``beams``: 0 compares sums, 1 (the default) means, and more prefers longer texts

    On the CPU, models whose layers all have a step in C (:func:`statewise.decoding.why_not`) then need one call for
    each token, which is several times faster. This needs a second copy of the weights, which is made at the start. So
    without ``weights`` it is only used for more than 16 tokens, and not under ``kernels.use("torch")``.

    On a GPU each token is one CUDA graph of all layers, for more than 32 tokens (``model.to(torch.bfloat16)`` halves
    what is read). It needs a second copy of the state, and is recorded before the second token.
    ``sw.explain(model)`` says which way is used and why.

    The model's vocabulary may be larger than the tokenizer's, as published models pad theirs. Ids that the tokenizer
    does not have are then never drawn: their logits are minus infinity. The log-probabilities that you get still count
    all ids, as in evaluation.

    The rows of a ragged batch give what each would give alone. Rows that have finished read nothing more, and the
    iteration ends when all have finished.

    Time-invariant mixers (S4, S4D, S5, LSSL, LMU, H3, GSS) discretise once, before the first token, as a model's
    ``freeze()`` does: do not change the parameters before the last token.

    Cost:    one ``model`` call for every chunk of the prompt and every token but the last; constant memory and time
             per token, however many, if every mixer's state is bounded; keeping the tokens keeps only the last state.
    Errors:  InputError, before anything is computed, for an option out of its range, an empty prompt, ids outside the
             vocabulary, a tokenizer with a larger one, a state of another batch, and ``weights`` for a model on the
             CPU with a layer that has no step in C; later, if logits are not finite.
    """
    try:
        sampling = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        )
    except ConfigError as error:  # here they are arguments
        raise InputError(str(error).removeprefix("Sampling.")) from error
    check_integer("max_new_tokens", max_new_tokens, 0)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63):
        raise InputError(f"seed={seed!r} is out of range; use an integer from 0 to 2**63 - 1, or None for any")
    stops = check_stop(stop)
    if stops and tokenizer is None:
        raise InputError("stop strings need a tokenizer; give tokenizer=")
    document_token = document_token_of(model, tokenizer, document_token)
    tokens, row_lengths = _encode(model, prompt, state, tokenizer, document_token, lengths, prefill_chunk)
    seed = torch.Generator().seed() >> 1 if seed is None else seed
    tree = Tree.checked(n, best_of, beams, length_penalty, sampling, stops, with_draft=draft is not None)
    if draft is not None:
        return drafted(
            Drafting(model, draft, draft_tokens, weights, draft_weights, max_new_tokens),
            partial(_read, tokens=tokens, row_lengths=row_lengths, prefill_chunk=prefill_chunk),
            state,
            sampling,
            Endings(tokenizer, document_token, stops, stop_at_document),
            [(seed + i) % (1 << 63) for i in range(len(row_lengths))],
        )
    for name, value in (("draft_tokens", draft_tokens), ("draft_weights", draft_weights)):
        if value is not None:
            raise InputError(f"{name}={value!r} says how a draft is used, and there is none; give draft=")
    branching = Branching(model, weights, max_new_tokens, tree.width) if not tree.is_one else None
    make_steps = stepping(model, weights, max_new_tokens) if branching is None else branching.steps

    def read_prompt() -> tuple[LanguageModel, Reading]:
        reader = freeze(model) if has_operators_to_prepare(model) else model
        found = _read(
            reader, state, document_token, tokens=tokens, row_lengths=row_lengths, prefill_chunk=prefill_chunk
        )
        return reader, found

    endings = Endings(tokenizer, document_token, stops, stop_at_document)
    if tree.beams is not None:
        return searched(tree, branching, read_prompt, endings, max_new_tokens)

    def steps() -> Iterator[Token]:
        reader, reading = read_prompt()
        reading = reading if branching is None else branching.begun(reading)
        device, batch = reading.logits.device, len(reading.logits)
        without_token = ids_without_token(reading.logits, tokenizer)
        generators = [torch.Generator().manual_seed((seed + i) % (1 << 63)) for i in range(batch)]
        rows = [RowText(tokenizer, stops, ids) for ids in reading.recent.tolist()]
        ends = endings.tokens
        latest: list[Reading | Callable[[], Reading]] = []
        previous: list[int] = []
        read_next: Step | None = None
        for n_left in range(max_new_tokens - 1, -1, -1):
            latest.clear()
            active = torch.tensor([not row.finished for row in rows], device=device)
            with evaluation_mode(reader), torch.inference_mode():
                if previous:
                    unread = torch.tensor(previous, device=device)[:, None]
                    if read_next is None:
                        read_next = make_steps(reader, reading)
                    reading = read_next(
                        reading,
                        unread.clamp(min=0),
                        active.long() if -1 in previous or not all(active) else None,
                        unread == document_token if not stop_at_document and document_token in previous else None,
                    )
                uniforms = torch.stack(
                    [torch.rand((), dtype=torch.float64, generator=g, device="cpu") for g in generators]
                )
                logits = reading.logits
                if without_token is not None:
                    logits = logits.masked_fill(without_token, -math.inf)
                drawn = sampling.draw(logits, reading.seen, uniforms.to(device))
                log_probabilities = reading.logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0]
            ids = drawn.where(active, -1)
            log_probabilities = log_probabilities.where(active, 0.0)
            check_finite(log_probabilities)
            previous = ids.tolist()
            text = [row.feed(token, ends, last=not n_left) for row, token in zip(rows, previous)]
            finished = torch.tensor([row.finished for row in rows], device=device)
            latest = [reading if branching is None else partial(branching.apart, reading)]
            yield Token(ids, log_probabilities, finished, None if tokenizer is None else text, latest)
            if all(row.finished for row in rows):
                return

    if tree.n < tree.width:
        return best(tree, steps(), read_prompt, endings)
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
    """Read a prompt and return what :func:`generate` continues from: the arguments are those of ``generate``.

    ``generate(model, state=read(model, prompt))`` writes the same as ``generate(model, prompt)``, even after you saved
    and loaded the Reading. So a long document only needs to be read once.

    Cost:    O(length) work; memory for ``prefill_chunk`` tokens; the logits of one position for each chunk.
    Errors:  InputError as for ``generate``.
    """
    document_token = document_token_of(model, tokenizer, document_token)
    tokens, row_lengths = _encode(model, prompt, state, tokenizer, document_token, lengths, prefill_chunk)
    found = _read(model, state, document_token, tokens=tokens, row_lengths=row_lengths, prefill_chunk=prefill_chunk)
    return copied(found)


def document_token_of(model: LanguageModel, tokenizer: Tokenizer | None, document_token: int | None) -> int | None:
    """The token that begins and ends documents for :func:`generate`; None if texts have none.

    Errors:  InputError for one that is not an id of the model, and for a tokenizer with more ids than the model.
    """
    vocab_size = model.config.vocab_size
    if tokenizer is not None:
        require_fits(tokenizer, vocab_size)
    if document_token is None:
        # A published model has its own tokens; one that ends a turn of a conversation must not begin it anew
        return None if tokenizer is None or tokenizer.conventions is not None else tokenizer.document_token
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
                f"{model.config.vocab_size}; another model made it"
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
    state: Reading | LanguageModelState | None,
    document_token: int | None,
    *,
    tokens: Tensor,
    row_lengths: Sequence[int],
    prefill_chunk: int,
) -> Reading:
    """Fold :func:`extend` over chunks of the prompt.

    So many tokens at a time that a layer's results fit the cache better, and are no larger than what malloc
    keeps for reuse (32 MB): beyond, every layer writes into pages that the system has to clear first.
    """
    batch, length = tokens.shape
    each = max(min(prefill_chunk, SHORTEST_CHUNK), prefill_chunk // max(batch, 1))
    device = model.embedding.weight.device
    reading = state if isinstance(state, Reading) else nothing_read(model, batch, state)
    with evaluation_mode(model), torch.inference_mode():
        if state is None:
            reading = reading._replace(state=model.with_room(reading.state, length))
        for begin in range(0, length, each):
            chunk = tokens[:, begin : begin + each].to(device)
            n_real = torch.tensor(row_lengths, device="cpu").sub(begin).clamp(0, chunk.shape[1])
            ragged = bool((n_real < chunk.shape[1]).any())
            starts = None if document_token is None else chunk == document_token
            if starts is not None and state is None and begin == 0:
                starts[:, 0] = False  # a row that begins at rest needs no telling
            if starts is not None and not bool(starts.any()):
                starts = None
            reading = extend(model, reading, chunk, n_real.to(device) if ragged else None, starts)
    return reading
