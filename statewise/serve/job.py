"""One sequence of a request: what is to be read and written, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.tokenizers import Tokenizer
from statewise.generation import Reading, Sampling
from statewise.generation.reading import N_RECENT
from statewise.generation.stopping import RowText
from statewise.serve.errors import RequestError


class Piece(NamedTuple):
    """A token that was written.

    text: what it adds to the text, perhaps nothing
    top:  the most likely tokens with their log-probabilities, if asked
    """

    token: int
    text: str
    log_probability: float | None
    top: list[tuple[int, float]]


class Done(NamedTuple):
    """The end of a sequence.

    reason:   "stop" for an end token or a stop string, "length", or "cancelled"
    n_kept:   tokens of the prompt that did not have to be read
    embedding: (width,), of a job that asks for one
    scores:   the tokens of the prompt, of a job that asks for their log-probabilities
    not_saved: why the state at the end could not be saved, of a job that asks for that
    """

    reason: str
    n_read: int
    n_kept: int
    n_written: int
    embedding: list[float] | None = None
    scores: Sequence[Piece] = ()
    not_saved: RequestError | None = None


class Failed(NamedTuple):
    """Why a sequence could not be read or written."""

    error: Exception


Event = Piece | Done | Failed


@dataclass(eq=False, kw_only=True)
class Job:
    """A sequence to read, and then to continue, or to describe by one vector.

    ids:            (n,) all tokens to be read, with those of ``begin``
    begin:          a Reading after the first of them, of a saved state, and after how many
    marks:          after how many tokens a state is worth keeping, besides after all
    sampling, seed, max_new_tokens, stop: as in :func:`statewise.generate`
    n_top:          how many of the most likely tokens each event names; None: no log-probabilities
    text_begins:    whether the text that is written continues no word of the prompt
    save_as:        the name that the state at the end gets
    embed:          whether the features are asked for, and nothing is written
    scored:         whether the log-probabilities of the prompt's own tokens are asked for
    sink:           is given each event, in the thread of the web server
    """

    ids: np.ndarray
    sink: Callable[[Event], None]
    begin: tuple[int, Reading] | None = None
    marks: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    max_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    n_top: int | None = None
    text_begins: bool = False
    save_as: str | None = None
    embed: bool = False
    scored: bool = False
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)
    first_token: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its prompt is read to be continued, so that the state may come from another job: a vector and a score
        are of all tokens."""
        return not (self.embed or self.scored)

    # of the engine's thread
    reading: Reading | None = None
    n_read: int = 0
    n_kept: int = 0
    row: int = -1
    features: Tensor | None = None
    scores: list[Piece] = field(default_factory=list)
    writing: Writing | None = None


class Writing:
    """What is drawn from, and what has been drawn.

    logits: (1, vocabulary), of the next token     unread: the last token, which the model has not read yet
    """

    def __init__(self, job: Job, reading: Reading, tokenizer: Tokenizer) -> None:
        recent = [] if job.text_begins else reading.recent[0].tolist()
        self.logits: Tensor | None = reading.logits
        self.seen = reading.seen.clone()
        self.drawn: list[int] = []
        self.unread: int | None = None
        self.text = RowText(tokenizer, job.stop, recent)
        self._recent = reading.recent[0].tolist()
        self._generator = torch.Generator().manual_seed(job.seed)

    def uniform(self) -> Tensor:
        """The number that the next token is drawn with, as :func:`statewise.generate` has it."""
        return torch.rand((), dtype=torch.float64, generator=self._generator, device="cpu")

    def read(self, token: int, logits: Tensor) -> None:
        """The model has read the last token."""
        self.seen[0, token] = True
        self._recent = [*self._recent, token][-N_RECENT:]
        self.logits, self.unread = logits, None

    def recent(self) -> Tensor:
        """(1, 8), as a Reading has it."""
        return torch.tensor([self._recent], device=self.seen.device)
