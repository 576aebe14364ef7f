"""Where a row ends: at an end token, or at a stop string, wherever the pieces of its text are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statewise.data.tokenizers import Tokenizer
from statewise.errors import InputError


class StopText:
    """Passes a text on, piece by piece, up to the first stop string.

    The first stop string is the one that is complete first; if several are complete with the same character, the one
    that began first. It is never part of the output, so a piece that may be its beginning is held back until the
    text shows that it is not. At most the longest stop string's length is held, and each piece costs the same however
    long the text has become.

    >>> text = StopText(["\\n\\n"])
    >>> [text.feed(piece) for piece in ("one\\n", "two", "\\n", "\\nthree")]
    ['one', '\\ntwo', '', '']
    >>> text.stopped
    True
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop = tuple(stop)
        self.stopped = False
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that is now known to be before any stop string."""
        if self.stopped or not self.stop:
            return "" if self.stopped else piece
        text = self._held + piece
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in self.stop if stop in text]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        n_held = next(
            (
                n
                for n in range(min(len(text), max(map(len, self.stop)) - 1), 0, -1)
                if any(stop.startswith(text[-n:]) for stop in self.stop)
            ),
            0,
        )
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """What is still held back, for a text that ends without a stop string."""
        text, self._held = self._held, ""
        return text


def check_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple; one string stands for itself.

    >>> check_stop("end")
    ('end',)
    """
    if not isinstance(stop, Sequence):
        raise InputError(f"stop={stop!r} is not a text; use a text or a list of texts")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise InputError(f"stop={stops!r} holds {text!r}; expected texts of at least one character")
    return stops


class RowText:
    """The text of one row, and whether the row has ended."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str], recent: Sequence[int]) -> None:
        self.finished = False
        self._stop = StopText(stops)
        self._decoder = None if tokenizer is None else tokenizer.stream_decoder()
        for token in recent:  # what comes next may complete a character, or be a word after a word
            if self._decoder is not None and token >= 0:
                self._decoder.feed(token)

    def feed(self, token: int, ends: frozenset[int], *, last: bool) -> str:
        if self.finished:
            return ""
        text = ""
        self.finished = token in ends
        if not self.finished and self._decoder is not None:
            text = self._stop.feed(self._decoder.feed(token))
        if (self.finished or last) and self._decoder is not None and not self._stop.stopped:
            text += self._stop.feed(self._decoder.finish())
            text += self._stop.flush()
        self.finished = self.finished or self._stop.stopped
        return text


def end_tokens(tokenizer: Tokenizer | None, document_token: int | None) -> frozenset[int]:
    """The tokens that end a row: those of a published model, or the document token.

    document_token:  the one that was given, or the tokenizer's own; of a published tokenizer None unless it was given
    """
    conventions = None if tokenizer is None else tokenizer.conventions
    found = {document_token} if conventions is None else {document_token, *conventions.end_ids}
    return frozenset(i for i in found if i is not None)


class Endings(NamedTuple):
    """Where a row ends; see :func:`~statewise.generate`."""

    tokenizer: Tokenizer | None
    document_token: int | None
    stops: tuple[str, ...]
    stop_at_document: bool

    @property
    def tokens(self) -> frozenset[int]:
        return end_tokens(self.tokenizer, self.document_token) if self.stop_at_document else frozenset()
