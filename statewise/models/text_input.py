"""How texts become tokens for a classifier or regressor that reads tokens: part of its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import EACH_ONCE, AtLeastTwo, Name, OneOf
from statewise.errors import ConfigError

ENCODINGS = ("bytes", "characters", "tokens")


@dataclass(frozen=True, kw_only=True)
class TextInputConfig(Config):
    """encoding:   "bytes": each byte is a token. "characters": each that is in the vocabulary, and one for all others.
                An end token comes last; see ``statewise.data.long_range.vocabulary``. "tokens": those of the
                tokenizer that the checkpoint has, the document token first
    vocabulary: of characters, the tokens in order, special ones first; () of the others
    max_length: tokens of a text that are read, the end or document token among them
    field:      of records, as those of JSON lines, where the text was in training; None: not in records
    """

    encoding: Annotated[str, OneOf(ENCODINGS)] = "bytes"
    max_length: AtLeastTwo = 4096
    vocabulary: Annotated[tuple[str, ...], EACH_ONCE] = ()
    field: Name | None = None

    def __post_init__(self) -> None:
        if (self.encoding == "characters") != bool(self.vocabulary):
            raise ConfigError(
                f"TextInputConfig has encoding={self.encoding!r} with {len(self.vocabulary)} tokens in its vocabulary; "
                'give one with "characters", and none otherwise'
            )


def needs_tokenizer(config: object) -> bool:
    """Whether a model of this config reads the tokens of a tokenizer that its checkpoint has beside it."""
    text = getattr(config, "text", None)
    return isinstance(text, TextInputConfig) and text.encoding == "tokens"


def require_fits(name: str, config: TextInputConfig, vocab_size: int | None) -> None:
    """Errors:  ConfigError unless a model ``name`` with ``vocab_size`` tokens can read such texts."""
    if vocab_size is None or (config.vocabulary and len(config.vocabulary) != vocab_size):
        raise ConfigError(
            f"{name}.text has {len(config.vocabulary) or config.encoding} tokens, but vocab_size={vocab_size}; give as "
            "many of both"
        )
