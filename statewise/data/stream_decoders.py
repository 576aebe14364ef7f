"""Tokens one at a time to text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Protocol

from statewise.errors import DataError

REPLACEMENT = "\ufffd"
# Ill-formed UTF-8 is held back this many tokens before it is shown as replacement characters: without
# a bound, a model that writes nothing but stray bytes would make the cost per token grow for ever.
MAX_HELD_TOKENS = 64


class StreamDecoder(Protocol):
    """Tokens one at a time to text; what ``feed`` and ``finish`` return, joined, is ``decode`` of all tokens."""

    def feed(self, token: int) -> str:
        """The text that this token completes; empty while a character is still incomplete."""

    def finish(self) -> str:
        """What is left: an incomplete character becomes U+FFFD. The decoder is then as new."""


class ByteStreamDecoder:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        (token,) = checked((token,))
        return self._decoder.decode(bytes((token,))) if token < 256 else ""

    def finish(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


class FileStreamDecoder:
    """Keeps the tokens behind the last piece given out, since a token's text may depend on the one before it."""

    def __init__(self, decode: Callable[[list[int]], str], is_text: Callable[[int], bool]) -> None:
        self._decode, self._is_text = decode, is_text
        self._tokens: list[int] = []
        self._n_given = 0  # how many of the tokens have been given out as text
        self._given = ""  # and that text

    def feed(self, token: int) -> str:
        (token,) = checked((token,))
        if not self._is_text(token):
            return ""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        incomplete = text.endswith(REPLACEMENT) or len(text) <= len(self._given)
        if incomplete and len(self._tokens) - self._n_given < MAX_HELD_TOKENS:
            return ""
        new = text[len(self._given) :]
        self._tokens = self._tokens[self._n_given :]
        self._n_given, self._given = len(self._tokens), self._decode(self._tokens)
        return new

    def finish(self) -> str:
        new = self._decode(self._tokens)[len(self._given) :]
        self._tokens, self._n_given, self._given = [], 0, ""
        return new


def checked(ids: Iterable[int]) -> list[int]:
    tokens = [int(token) for token in ids]
    if any(token < 0 for token in tokens):
        raise DataError(f"{min(tokens)} is not a token; tokens are 0 or more")
    return tokens
