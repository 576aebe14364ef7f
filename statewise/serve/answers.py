"""Answers in OpenAI's form: whole, and as events of a stream."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from statewise.serve.job import Done, Piece
from statewise.serve.model import ServedModel
from statewise.serve.requests import Wanted


@dataclass
class Choice:
    """One sequence as it comes. text_offset: where the next token's text begins, for the older log-probabilities"""

    pieces: list[Piece] = field(default_factory=list)
    done: Done | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def mean(self) -> float:
        """The mean log-probability of its tokens."""
        values = [piece.log_probability or 0.0 for piece in self.pieces]
        return sum(values) / max(len(values), 1)


def best_choices(choices: Sequence[Choice], width: int, n: int) -> list[Choice]:
    """The n of each prompt's ``width`` choices with the highest mean log-probability, the best first."""
    prompts = [choices[i : i + width] for i in range(0, len(choices), width)]
    return [choice for of_one in prompts for choice in sorted(of_one, key=lambda one: -one.mean)[:n]]


class Answers:
    """The objects of one request.

    chat:  whether it is a chat completion
    echoed: the text of each choice's prompt, which then begins it, and whether it was given as a text
    """

    def __init__(
        self, served: ServedModel, *, chat: bool, wanted: Wanted, echoed: tuple[tuple[str, bool], ...] = ()
    ) -> None:
        self.served, self.chat, self.n_top, self.n, self.echoed = served, chat, wanted.n_top, wanted.n, echoed
        self.id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self._sent: dict[int, int] = {}  # characters of each choice, for text_offset

    def whole(self, choices: list[Choice], written: list[Choice]) -> dict[str, Any]:
        """The answer of a request that does not stream. written: all sequences, of which it counts the tokens"""
        found = []
        for i, choice in enumerate(choices):
            assert choice.done is not None  # it has ended
            text, pieces = self._begin(i) + choice.text, choice.pieces
            if choice.done.scores:
                pieces = [*self._tokens_of_prompt(i, choice.done.scores), *pieces]
                self._sent[i] = 0
            said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
            found.append(
                {
                    "index": i,
                    **said,
                    "logprobs": self._log_probabilities(i, pieces),
                    "finish_reason": choice.done.reason,
                }
            )
        kind = "chat.completion" if self.chat else "text_completion"
        done = [choice.done for choice in written if choice.done]
        counts = usage(done, self.n * len(written) // len(choices))
        return {**self._object(kind, found, counts), **not_saved(done)}

    def begin(self, i: int) -> dict[str, Any] | None:
        """The first event of a choice."""
        if self.chat:
            return self._event(i, {"delta": {"role": "assistant", "content": ""}})
        return self._event(i, {"text": self._begin(i)}) if self.echoed else None

    def piece(self, i: int, piece: Piece) -> dict[str, Any] | None:
        """An event; None for a token that adds nothing yet."""
        if not piece.text and self.n_top is None:
            return None
        said = {"delta": {"content": piece.text}} if self.chat else {"text": piece.text}
        return self._event(i, said, logprobs=self._log_probabilities(i, [piece]))

    def end(self, i: int, done: Done) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return {**self._event(i, said, finish_reason=done.reason), **not_saved([done])}

    def usage(self, done: list[Done]) -> dict[str, Any]:
        """The last event, if it was asked for."""
        return self._object("chat.completion.chunk" if self.chat else "text_completion", [], usage(done, self.n))

    def _begin(self, i: int) -> str:
        return self.echoed[i][0] if self.echoed else ""

    def _tokens_of_prompt(self, i: int, scores: Sequence[Piece]) -> list[Piece]:
        """Each with the part of the text that it completes. A token that was put before a text is left out: the echo
        does not have it either."""
        decoder = self.served.tokenizer.stream_decoder()
        parts = [decoder.feed(piece.token) for piece in scores]
        parts[-1] += decoder.finish()
        found = [piece._replace(text=part) for piece, part in zip(scores, parts)]
        added = self.echoed[i][1] and not self.served.tokenizer.decode([scores[0].token])
        return found[1:] if added else found

    def _event(
        self, i: int, said: dict[str, Any], *, logprobs: Any = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": i, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk" if self.chat else "text_completion", [choice], None)

    def _object(self, kind: str, choices: list[dict[str, Any]], counts: dict[str, Any] | None) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}
        return {**about, "choices": choices, **({} if counts is None else {"usage": counts})}

    def _log_probabilities(self, i: int, pieces: list[Piece]) -> dict[str, Any] | None:
        if self.n_top is None:
            return None
        return {"content": [self._token(p) for p in pieces], "refusal": None} if self.chat else self._older(i, pieces)

    def _token(self, piece: Piece) -> dict[str, Any]:
        top = [self._named(token, value) for token, value in piece.top]
        return {**self._named(piece.token, piece.log_probability), "top_logprobs": top}

    def _named(self, token: int, value: float | None) -> dict[str, Any]:
        names = self.served.names
        return {"token": names.text(token), "logprob": value, "bytes": names.bytes(token)}

    def _older(self, i: int, pieces: list[Piece]) -> dict[str, Any]:
        """In the form of /v1/completions."""
        text, offsets = self.served.names.text, []
        at = self._sent.get(i, len(self._begin(i)))
        for piece in pieces:
            offsets.append(at)
            at += len(piece.text)
        self._sent[i] = at
        return {
            "tokens": [text(piece.token) for piece in pieces],
            "token_logprobs": [piece.log_probability for piece in pieces],
            "top_logprobs": [self._top(piece) for piece in pieces] if self.n_top else None,
            "text_offset": offsets,
        }

    def _top(self, piece: Piece) -> dict[str, float]:
        """The most likely tokens, and the one that came, which may be one more."""
        came = [] if piece.log_probability is None else [(piece.token, piece.log_probability)]
        return {self.served.names.text(token): value for token, value in (*piece.top, *came)}


def not_saved(done: list[Done]) -> dict[str, Any]:
    """What is said beside a text whose state could not be saved: the text was written, and is not thrown away."""
    errors = [one.not_saved for one in done if one.not_saved is not None]
    return {"save_state_error": errors[0].body()["error"]} if errors else {}


def usage(done: list[Done], n: int = 1) -> dict[str, Any]:
    """Tokens of all choices, ``n`` to each prompt, which counts once. ``cached_tokens`` are those of the prompt that
    did not have to be read.

    >>> usage([Done("stop", 5, 4, 2), Done("length", 5, 5, 3)], n=2)["total_tokens"]
    10
    """
    read, written = sum(one.n_read for one in done[::n]), sum(one.n_written for one in done)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(one.n_kept for one in done[::n])},
    }


def embeddings(served: ServedModel, done: list[Done], *, in_base64: bool) -> dict[str, Any]:
    """Vectors of length 1, in the order of the inputs."""

    def written(vector: list[float] | None) -> Any:
        return base64.b64encode(np.array(vector, "<f4").tobytes()).decode() if in_base64 else vector

    data = [{"object": "embedding", "index": i, "embedding": written(one.embedding)} for i, one in enumerate(done)]
    n_read = sum(one.n_read for one in done)
    counts = {"prompt_tokens": n_read, "total_tokens": n_read}
    return {"object": "list", "data": data, "model": served.name, "usage": counts}


def event(data: dict[str, Any] | str) -> bytes:
    """One event of a stream.

    >>> event("[DONE]")
    b'data: [DONE]\\n\\n'
    """
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
