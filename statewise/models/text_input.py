"""What makes tokens of a text for a model that reads tokens and is no language model: part of its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import EACH_ONCE, AtLeastTwo, OneOf
from statewise.errors import ConfigError

ENCODINGS = ("bytes", "characters")


@dataclass(frozen=True, kw_only=True)
class TextInputConfig(Config):
    """encoding:   "bytes": each byte is a token. "characters": each that is in the vocabulary, and one for all others.
                An end token stands behind; see ``statewise.data.long_range.vocabulary``
    vocabulary: of characters, the tokens in order, special ones first; () of bytes
    max_length: tokens of a text that are read, the end token among them
    """

    encoding: Annotated[str, OneOf(ENCODINGS)] = "bytes"
    max_length: AtLeastTwo = 4096
    vocabulary: Annotated[tuple[str, ...], EACH_ONCE] = ()

    def __post_init__(self) -> None:
        if (self.encoding == "characters") != bool(self.vocabulary):
            raise ConfigError(
                f"TextInputConfig has encoding={self.encoding!r} with {len(self.vocabulary)} tokens in its vocabulary; "
                'give one with "characters", and none with "bytes"'
            )


def require_fits(name: str, config: TextInputConfig, vocab_size: int | None) -> None:
    """Errors:  ConfigError unless a model ``name`` with so many tokens can read such texts."""
    if vocab_size is None or (config.vocabulary and len(config.vocabulary) != vocab_size):
        raise ConfigError(
            f"{name}.text has {len(config.vocabulary) or config.encoding} tokens, but vocab_size={vocab_size}; give as "
            "many of both"
        )
