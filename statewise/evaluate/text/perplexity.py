"""How well a model predicts a text: bits per byte, and perplexity per token and per word."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.errors import InputError, NotFiniteError, require_least
from statewise.mixers.base import Mixer
from statewise.mixers.positions import LearnedPositions
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel

if TYPE_CHECKING:
    from statewise.data.text import TokenSplit

DEFAULT_WINDOW = 1024  # tokens, for models that cannot carry their state
MAX_LOGITS = 1 << 22  # computed at once: 16 MB in float32, whatever the vocabulary
LARGEST_EXPONENT = 709.0  # of e, in a float
WHITESPACE = b" \t\n\r\v\f"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What :func:`evaluate_tokens` found.

    n_tokens:             tokens scored: all but the first of the text, document tokens included
    n_bytes, n_words:     of the text that those tokens stand for, as given
    nats:                 minus the sum of the natural log-probabilities of the scored tokens
    document_token_nats:  the part of ``nats`` that went to document tokens, which stand for no byte
    bits_per_byte:        nats / ln 2 / n_bytes. It includes the document tokens: a compressor, too, must say
                          where a document ends. So the figure is at worst too high compared with a compressor's
    perplexity_per_token: exp(nats / n_tokens)
    perplexity_per_word:  exp(nats / n_words), None if ``n_words`` is not given, or the text has words of thousands of
                          letters, as a genome has, so that no float holds it
    seconds:              wall time
    tokens_per_second:    n_tokens / seconds
    """

    n_tokens: int
    n_bytes: int
    n_words: int | None
    nats: float
    document_token_nats: float
    bits_per_byte: float
    perplexity_per_token: float
    perplexity_per_word: float | None
    seconds: float
    tokens_per_second: float


def evaluate_tokens(
    model: LanguageModel,
    tokens: np.ndarray | Tensor | Sequence[int],
    *,
    n_bytes: int,
    n_words: int | None = None,
    document_token: int | None = None,
    across_documents: bool = False,
    chunk_length: int = 1024,
    window: int | None = None,
    stride: int | None = None,
    n_streams: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score each token of a text given all before it: every token but the first exactly once, in one of two ways.

    **Carried*: the text is read from rest to its end in chunks of ``chunk_length``, and the state is passed from chunk
    to chunk. The chunk length only changes the memory needed. This is the default if every mixer's state is bounded.

    **Windows*: for full attention, whose state would grow with the text, for learned positions, which run out, and for
    any model if ``window`` is given (by default 1024, or fewer if there are fewer positions). Each window of
    ``window`` tokens is read from rest and predicts the token after each of its tokens. All predictions of the first
    window count. In each later window only the last ``stride`` count (by default half the window), which see at least
    ``window - stride`` tokens before them.

    The first token has nothing before it, so it is not scored. It should be the document token; otherwise its bytes
    are not part of ``n_bytes``, which counts the bytes of ``tokens[1:]``. ``n_words`` is the number of
    words in them, however words are counted (see :func:`count_words`).

    document_token: begins documents. As in training, nothing passes from one document to the next, except that the
        last token predicts the document token; with ``across_documents`` the state is carried over.
    n_streams: cut the text into this many contiguous pieces and read them side by side as a batch, which is faster.
        Each piece begins at rest, so its first predictions see fewer tokens than in one stream.
    progress: called with the number of tokens scored so far, and of all tokens.

    Shapes:   tokens: (n,) integers; a memory map is read piece by piece
    Numerics: log-softmax in float32 (or wider, as the model is), sums in float64.
    Cost:     O(n) work and memory for one chunk if the state is carried; window / stride times that with windows.
    Errors:   InputError for fewer than 2 tokens, ids outside the vocabulary, options out of range, and a model whose
              predictions are not finite.
    """
    tokens = _check_tokens(tokens, model.config.vocab_size)
    n_targets = len(tokens) - 1
    if n_bytes < 1 or (n_words is not None and n_words < 1):
        raise InputError(f"n_bytes={n_bytes} and n_words={n_words} must be at least 1, as there is text to score")
    require_least(InputError, chunk_length=(chunk_length, 1), window=(window, 1), stride=(stride, 1))
    if not 1 <= n_streams <= n_targets:
        raise InputError(f"n_streams={n_streams} is out of range; use 1 to {n_targets}, the number of scored tokens")
    if window is None:
        window = _default_window(model, forced=stride is not None)
    if window is not None and stride is None:
        stride = max(1, window // 2)
    if window is not None and stride is not None and stride > window:
        raise InputError(f"stride={stride} is longer than window={window}: tokens between windows would go unscored")

    begin = time.perf_counter()
    streams = _Streams(tokens, n_streams, None if across_documents else document_token, model.embedding.weight.device)
    if window is None or stride is None:
        predictions = _carried(model, streams, chunk_length)
    else:
        predictions = _windows(model, streams, window, stride)
    nats = document_token_nats = 0.0
    n_done = 0
    with evaluation_mode(model), torch.no_grad():
        for features, targets in predictions:
            losses = _losses(model, features, targets)
            nats += float(losses.sum())
            if document_token is not None:
                document_token_nats += float(losses[targets == document_token].sum())
            n_done += len(targets)
            if not math.isfinite(nats):
                raise NotFiniteError(
                    f"the model's predictions are not finite among the first {n_done} tokens: "
                    "its parameters hold NaN or infinity"
                )
            if progress is not None:
                progress(n_done, n_targets)
    seconds = time.perf_counter() - begin
    return Evaluation(
        n_tokens=n_targets,
        n_bytes=n_bytes,
        n_words=n_words,
        nats=nats,
        document_token_nats=document_token_nats,
        bits_per_byte=nats / math.log(2) / n_bytes,
        perplexity_per_token=_exp(nats / n_targets),
        perplexity_per_word=None if n_words is None or nats / n_words >= LARGEST_EXPONENT else _exp(nats / n_words),
        seconds=seconds,
        tokens_per_second=n_targets / max(seconds, 1e-9),
    )


def evaluate_split(
    model: LanguageModel,
    split: TokenSplit,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None = None,
    **options: Any,
) -> Evaluation:
    """Score a split of a corpus, or its first ``max_tokens`` tokens; ``options`` are those of :func:`evaluate_tokens`.

    Its tokens begin with the document token, so that every byte is scored. Words are counted in each document's
    decoded tokens (see :func:`count_words`).

    Errors:  InputError as for ``evaluate_tokens``, and if the tokenizer's vocabulary is not the model's.
    """
    require_fits(tokenizer, model.config.vocab_size)
    if max_tokens is not None and max_tokens < 2:
        raise InputError(f"max_tokens={max_tokens} is too few: the first token is given, so use at least 2")
    tokens = split.tokens[:max_tokens]
    n_bytes = split.n_bytes if len(tokens) == split.n_tokens else tokenizer.token_bytes(tokens)
    begins = [int(offset) for offset in split.document_offsets if offset < len(tokens)]
    documents = (tokens[begin:end] for begin, end in zip(begins, [*begins[1:], len(tokens)]))
    n_words = sum(count_words(tokenizer.decode(document).encode()) for document in documents)
    options = {"document_token": tokenizer.document_token, **options}
    return evaluate_tokens(model, tokens, n_bytes=n_bytes, n_words=n_words or None, **options)


def evaluate_text(model: LanguageModel, tokenizer: Tokenizer, text: str | bytes, **options: Any) -> Evaluation:
    """Score a text as one document, after the document token; ``options`` are those of :func:`evaluate_tokens`.

    Errors:  InputError as for ``evaluate_tokens``, if there is no text, and if the tokenizer's vocabulary is not the
             model's; DataError if the tokenizer cannot encode the text.
    """
    require_fits(tokenizer, model.config.vocab_size)
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if not data:
        raise InputError("the text to evaluate is empty")
    tokens = np.concatenate([[tokenizer.document_token], tokenizer.encode_bytes(data)])
    options = {"document_token": tokenizer.document_token, **options}
    return evaluate_tokens(model, tokens, n_bytes=len(data), n_words=count_words(data) or None, **options)


def count_words(text: bytes) -> int:
    """Runs of bytes between ASCII whitespace: ``len(text.split())`` without the list.

    >>> count_words(b"  a word,  another ")
    3
    """
    space = np.zeros(256, dtype=bool)
    space[list(WHITESPACE)] = True
    count, before = 0, True
    for begin in range(0, len(text), 1 << 20):
        is_space = space[np.frombuffer(text, np.uint8, min(1 << 20, len(text) - begin), begin)]
        count += int((is_space[:-1] & ~is_space[1:]).sum()) + int(before and not is_space[0])
        before = bool(is_space[-1])
    return count


def has_bounded_state(model: LanguageModel) -> bool:
    """Whether the model's state keeps its size however much it reads: no layer has full attention."""
    return all(mixer.bounded_state for mixer in model.modules() if isinstance(mixer, Mixer))


def position_limit(model: LanguageModel) -> int | None:
    """How many tokens the model has learned positions for; None: it reads texts of any length."""
    limits = (module.n_positions for module in model.modules() if isinstance(module, LearnedPositions))
    return min(limits, default=None)


def _default_window(model: LanguageModel, *, forced: bool) -> int | None:
    """None where the state can be carried through a text of any length."""
    limit = position_limit(model)
    if has_bounded_state(model) and limit is None and not forced:
        return None
    return min(DEFAULT_WINDOW, limit or DEFAULT_WINDOW)


class _Block(NamedTuple):
    """The tokens of one time range of all streams, right-padded; targets are the tokens one later."""

    inputs: Tensor  # (streams, length) int64
    targets: Tensor  # (streams, length) int64
    real: Tensor  # (streams, length) bool
    lengths: Tensor | None  # (streams,), or None if all are real
    starts: Tensor | None  # (streams, length) bool, or None if no document begins


class _Streams:
    """A text cut in contiguous pieces whose numbers of targets differ by at most one."""

    def __init__(self, tokens: np.ndarray, n_streams: int, document_token: int | None, device: torch.device) -> None:
        n_targets = len(tokens) - 1
        self.tokens, self.document_token, self.device = tokens, document_token, device
        self.begins = [n_targets * i // n_streams for i in range(n_streams)]
        self.n_targets = [end - begin for begin, end in zip(self.begins, [*self.begins[1:], n_targets])]
        self.length = max(self.n_targets)

    def block(self, begin: int, end: int) -> _Block:
        """The times [begin, end) of each stream."""
        lengths = torch.tensor([min(max(n - begin, 0), end - begin) for n in self.n_targets])
        padded = np.zeros((len(self.begins), end - begin + 1), dtype=np.int64)
        for row, first, n in zip(padded, self.begins, lengths.tolist()):
            if n:
                row[: n + 1] = self.tokens[first + begin : first + begin + n + 1]
        tokens = torch.from_numpy(padded).to(self.device)
        inputs, targets, lengths = tokens[:, :-1], tokens[:, 1:], lengths.to(self.device)
        real = torch.arange(end - begin, device=self.device) < lengths[:, None]
        starts = None if self.document_token is None else inputs == self.document_token
        return _Block(
            inputs,
            targets,
            real,
            None if bool(real.all()) else lengths,
            starts if starts is not None and bool(starts.any()) else None,
        )


def _carried(model: LanguageModel, streams: _Streams, chunk_length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features (n, d_model) and targets (n,): every target once."""
    state = model.initial_state(len(streams.begins))
    for begin in range(0, streams.length, chunk_length):
        block = streams.block(begin, min(begin + chunk_length, streams.length))
        features, carried = model.features(block.inputs, state, lengths=block.lengths, starts=block.starts)
        assert carried is not None  # a state was given
        state = carried
        yield features[block.real], block.targets[block.real]


def _windows(model: LanguageModel, streams: _Streams, window: int, stride: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features (n, d_model) and targets (n,): every target once, in windows that each begin at rest."""
    n_scored = 0
    while n_scored < streams.length:
        end = min(n_scored + (stride if n_scored else window), streams.length)
        begin = max(0, end - window)
        block = streams.block(begin, end)
        features, _ = model.features(block.inputs, lengths=block.lengths, starts=block.starts)
        new = block.real[:, n_scored - begin :]
        yield features[:, n_scored - begin :][new], block.targets[:, n_scored - begin :][new]
        n_scored = end


def _losses(model: LanguageModel, features: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of each target (n,), in nats, as float64."""
    at_once = max(1, MAX_LOGITS // model.config.vocab_size)
    losses = []
    for part, wanted in zip(features.split(at_once), targets.split(at_once)):
        logits = model.head(part)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(F.cross_entropy(logits, wanted, reduction="none").double())
    return torch.cat(losses)


def _check_tokens(tokens: np.ndarray | Tensor | Sequence[int], vocab_size: int) -> np.ndarray:
    array = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asanyarray(tokens)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2:
        raise InputError(f"tokens must be at least 2 integers (n,), got {array.dtype} {array.shape}")
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= vocab_size:
        wrong = least if least < 0 else most
        raise InputError(f"the tokens hold the id {wrong}; the model's vocabulary has the ids 0 to {vocab_size - 1}")
    return array


def _exp(x: float) -> float:
    """exp, infinite where it would overflow."""
    return math.exp(x) if x < LARGEST_EXPONENT else math.inf
