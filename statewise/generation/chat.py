"""A conversation with a published instruction model: its template, its end tokens, and a state for each turn."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from statewise import kernels
from statewise.configuration import Config, from_dict, parse_json
from statewise.configuration.types import Natural, NonEmpty
from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.decoding import Decoder, why_not
from statewise.errors import CheckpointError, ConfigError, InputError, retold
from statewise.generation.chat_text import ChatText, n_agreeing
from statewise.generation.decode import Token, generate, read
from statewise.generation.reading import Reading
from statewise.generation.reading_file import has_note, load_noted, save_reading
from statewise.generation.sample import Sampling
from statewise.models.language_model import LanguageModel

MOST_STATES = 32  # that are kept to go back to, one a turn; each is as large as the model's state


NOTE = "chat"  # in the file of a state
Message = dict[str, str]
OneRole = Literal["system", "user", "assistant"]


class Read(NamedTuple):
    """Tokens that have been read, and what the model knows after them. turn: of the conversation, from 1 on"""

    turn: int
    ids: tuple[int, ...]
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class SavedMessage(Config):
    """A message in a file."""

    role: OneRole
    content: str


@dataclass(frozen=True, kw_only=True)
class SavedChat(Config):
    """A conversation in a file: ``n_first`` messages, the system's, and then questions and answers by turns.

    ids:  what the state beside it has read
    """

    messages: NonEmpty[SavedMessage]
    n_first: Natural
    ids: NonEmpty[Natural]

    def __post_init__(self) -> None:
        n_first = min(self.n_first, 2)  # a file may say any number
        wanted = ["system"] * n_first + ["user", "assistant"] * ((len(self.messages) - n_first) // 2)
        if n_first > 1 or [message.role for message in self.messages] != wanted:
            raise ConfigError(
                "SavedChat.messages must be one system message or none, then questions with their answers"
            )


class Chat:
    """A conversation. The model only reads what is new, and going back costs nothing, since states are kept.

        chat = sw.Chat(sw.load(source), sw.open_tokenizer(source), system="You are brief.")
        for piece in chat.say("What is a state?"):
            print(piece, end="")
        chat.undo()

    The model's own template writes each turn, and it is encoded as ``transformers`` encodes it. If the text begins with
    what the model has read, the model reads on from there. If it does not, since a template may write an answer in
    another way than the model did, the model continues from the last state that fits. So each answer is to the whole
    conversation as the template writes it.

    Names of special tokens in your messages, or the system's, are encoded as ordinary text: nobody can end a turn, or
    begin one of another role, by writing them.

    tokenizer: a :class:`FileTokenizer`; its ``conventions`` say how the model is used
    template:  a chat template (Jinja); None: the published one
    system:    a first message, of the role "system"
    temperature, top_k, top_p, min_p, repetition_penalty: as in :func:`generate`; None: as published, which is greedy
               unless the model's settings ask for samples
    max_new_tokens: the longest answer
    stop:      texts that also end an answer
    seed:      for the first answer; each later answer has the next seed. None: a new one each time
    weights:   as in :func:`generate`
    Errors:    DataError if there is no chat template; InputError for a tokenizer of another class, and as ``generate``.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        system: str | None = None,
        max_new_tokens: int = 1024,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        weights: str | Decoder | None = None,
    ) -> None:
        if not isinstance(model, LanguageModel):
            raise InputError(f"Chat needs a LanguageModel; got a {type(model).__name__}")
        self._text = ChatText(tokenizer, template)
        require_fits(tokenizer, model.config.vocab_size)
        self.model, self.tokenizer = model, tokenizer
        conventions = tokenizer.conventions
        given = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }
        base: dict[str, Any] = {} if conventions is None else conventions.sampling
        self.sampling = base | {name: value for name, value in given.items() if value is not None}
        try:
            Sampling(**self.sampling)
        except ConfigError as error:
            raise InputError(str(error).removeprefix("Sampling.")) from error
        if not isinstance(weights, Decoder) and kernels.backend.backend() != "torch" and why_not(model) is None:
            weights = Decoder(model, weights)  # packed once, and not for every answer
        self.options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop, "weights": weights}
        self.seed = seed
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._n_first = len(self.messages)
        self._states: list[Read] = []
        self.n_read = 0

    def say(self, text: str) -> Iterator[str]:
        """Says something, and yields the answer piece by piece. Both become part of the conversation when the answer
        ends. If you stop taking pieces, the answer is what has come until then.

        Afterwards ``n_read`` is the number of tokens of the prompt that had to be read.

        Errors:  InputError for anything but text; DataError if the template refuses the conversation, which is not
                 changed then.
        """
        if not isinstance(text, str):
            raise InputError(f"say needs a text; got a {type(text).__name__}")
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self.encode(messages)
        # A template may begin an answer in one way and write it down in another; what is before it stays
        return self._answer(messages, ids, n_agreeing(self.encode(messages, add_generation_prompt=False), ids))

    def undo(self) -> str | None:
        """Takes back the last question and its answer, and returns the question; None if there is none.

        Cost:    nothing: the state before it was kept.
        """
        if len(self.messages) <= self._n_first:
            return None
        said = self.messages[-2]["content"]
        del self.messages[-2:]
        return said

    def reset(self) -> None:
        """Removes all but the system's message."""
        del self.messages[self._n_first :]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation and the state after it to a file. It replaces only a file that it wrote before.

        Errors:  InputError if nothing has been said, or if the file exists and is not a saved conversation;
                 CheckpointError if writing fails.
        """
        if os.path.lexists(path) and not has_note(path, NOTE):
            raise InputError(f"{path} exists and is not a saved conversation; give another name")
        if not _turn(self.messages):
            raise InputError("the conversation is empty, so there is nothing to save; say something first")
        ids = self.encode(self.messages, add_generation_prompt=False)
        reading = self._read(ids, len(ids), _turn(self.messages))
        found = {"messages": self.messages, "n_first": self._n_first, "ids": list(ids)}
        save_reading(reading, path, model=self.model, notes={NOTE: json.dumps(found)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces this conversation by one that :meth:`save` wrote. The model does not read it again before the next
        question. The file does not have the states of earlier turns, so :meth:`undo` reads those turns again.

        Errors:  CheckpointError for a file that is not a conversation, is damaged, or was saved with other weights;
                 this conversation then stays as it was.
        """
        reading, notes = load_noted(path, model=self.model)
        with retold(CheckpointError, ConfigError, where=f"{path}: "):
            if NOTE not in notes:
                raise ConfigError("it holds a state without a conversation; expected a file of /save or Chat.save")
            saved = from_dict(SavedChat, parse_json(notes[NOTE], "the conversation"), where="the conversation")
        if len(reading.logits) != 1 or max(saved.ids) >= self.model.config.vocab_size:
            raise CheckpointError(f"{path}: its conversation has ids or rows that this model cannot have")
        self.messages = [{"role": each.role, "content": each.content} for each in saved.messages]
        self._n_first = saved.n_first
        self._states = [Read(_turn(self.messages), saved.ids, reading)]

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> tuple[int, ...]:
        """The ids of these messages, by default up to where an answer begins: :meth:`ChatText.encode`."""
        return self._text.encode(messages, add_generation_prompt=add_generation_prompt)

    def _answer(self, messages: list[Message], ids: tuple[int, ...], n_stable: int) -> Iterator[str]:
        reading = self._read(ids, n_stable, _turn(messages))
        seed = None if self.seed is None else self.seed + _turn(messages) - 1
        pieces: list[str] = []
        drawn: list[int] = []
        token: Token | None = None
        failed = False
        try:
            stream = generate(
                self.model, state=reading, tokenizer=self.tokenizer, seed=seed, **self.options, **self.sampling
            )
            for token in stream:
                assert token.text is not None  # a tokenizer was given
                drawn.append(int(token.ids))
                pieces += token.text
                yield token.text[0]
        except Exception:
            failed = True
            raise
        finally:
            if token is not None and not failed:
                self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
                with contextlib.suppress(InputError):  # Ctrl-C while the next was made
                    self._keep(Read(_turn(messages), (*ids, *drawn[:-1]), token.reading))

    def _read(self, ids: tuple[int, ...], n_stable: int, turn: int) -> Reading:
        """What the model knows after these tokens, from the last state that fits them.

        n_stable: how many of them the next turn will most likely begin with too
        """
        fitting = [kept for kept in self._states if kept.ids == ids[: len(kept.ids)]]
        last_of = {kept.turn: kept for kept in fitting}
        self._states = list(last_of.values())
        self.n_read = 0
        for end in (n_stable, len(ids)):
            last = self._states[-1] if self._states else None
            n_kept = 0 if last is None else len(last.ids)
            if end > n_kept:
                reading = read(self.model, list(ids[n_kept:end]), state=None if last is None else last.reading)
                self.n_read += end - n_kept
                self._keep(Read(turn, ids[:end], reading))
        reading = self._states[-1].reading
        return reading._replace(recent=torch.full_like(reading.recent, -1))  # an answer's text begins anew

    def _keep(self, found: Read) -> None:
        self._states = [*self._states, found][-MOST_STATES:]


def _turn(messages: Sequence[Message]) -> int:
    """How many questions there are."""
    return sum(message["role"] == "user" for message in messages)
