"""Text to tokens and back: the byte tokenizer, and any ``tokenizer.json``.

Every tokenizer has a *document token*: it begins each document of a corpus, and generation stops at it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from statewise.configuration import parse_json
from statewise.conventions.published import Conventions, read_conventions
from statewise.data.stream_decoders import ByteStreamDecoder, FileStreamDecoder, StreamDecoder, checked
from statewise.data.tokenizer_file import choose_document_token, put_before, read_tokenizer_file
from statewise.errors import DataError, InputError, StatewiseError, excerpt, reason
from statewise.files.limits import check_ids

if TYPE_CHECKING:
    import tokenizers

LONGEST_PREFIX = 1000
NAMED = ("bytes", "bases")  # tokenizers by name


class Tokenizer(Protocol):
    """What the data, the checkpoints and generation need of a tokenizer."""

    kind: str  # "bytes" or "tokenizers"
    vocab_size: int  # every token is below it
    gaps: Sequence[int]  # the ids below it that are no token
    document_token: int
    prefix: Sequence[int]  # what its own post-processor puts before a text
    fingerprint: str  # equal for two tokenizers only if they map all text alike
    conventions: Conventions | None  # of a published model's: its end tokens, its settings, its chat template

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any document token or other addition."""

    def encode_bytes(self, data: bytes) -> np.ndarray:
        """The tokens of UTF-8 text as (n,) unsigned integers."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens. Document tokens, special tokens and ids past ``vocab_size`` stand for no text."""

    def token_bytes(self, ids: Iterable[int]) -> int:
        """How many UTF-8 bytes of text these tokens stand for."""

    def stream_decoder(self) -> StreamDecoder:
        """A fresh incremental decoder."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned integer that holds every token: two bytes up to a vocabulary of 65,536, else four."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class ByteTokenizer:
    """Tokens 0 to 255 are the bytes of UTF-8 text; 256 begins a document. It takes any bytes and loses none.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    [110, 195, 169]
    >>> tokenizer.decode([256, 110, 195, 169])
    'né'
    """

    kind = "bytes"
    vocab_size = 257
    gaps: Sequence[int] = ()
    document_token = 256
    prefix: Sequence[int] = ()
    fingerprint = hashlib.sha256(b'{"document_token":256,"kind":"bytes","vocab_size":257}').hexdigest()
    conventions: Conventions | None = None

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text. Bytes that surrogateescape smuggled into it come out as they were."""
        try:
            return list(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise DataError(f"the text is not valid Unicode: {error.reason} at character {error.start}") from error

    def encode_bytes(self, data: bytes) -> np.ndarray:
        """(n,) uint16, one token a byte; any bytes will do."""
        return np.frombuffer(data, np.uint8).astype(token_dtype(self.vocab_size))

    def decode(self, ids: Iterable[int]) -> str:
        """The text; what is not UTF-8 becomes U+FFFD, tokens from 256 on stand for nothing."""
        return bytes(token for token in checked(ids) if token < 256).decode("utf-8", "replace")

    def token_bytes(self, ids: Iterable[int]) -> int:
        """The number of tokens below 256. Exact."""
        return sum(token < 256 for token in checked(ids))

    def stream_decoder(self) -> StreamDecoder:
        """An incremental UTF-8 decoder: O(1) a token."""
        return ByteStreamDecoder()


class FileTokenizer:
    """A ``tokenizer.json`` of the ``tokenizers`` library.

    ``source`` is the path of the file, of a folder that holds one, or its JSON text; with ``name`` it is text, of the
    file that messages call so. The file's own truncation and
    padding are switched off, and the names of special tokens in a text are encoded as ordinary text, so that no
    document can forge a document token.

    The document token is the first of ``DOCUMENT_TOKEN_NAMES`` that is a special token of the tokenizer. ``prefix`` is
    what its own post-processor puts before a text: nothing with GPT-2's and GPT-NeoX's, one token with Mistral's.
    ``fingerprint`` is the SHA-256 of the JSON in canonical form; ``json`` is the text for a checkpoint to carry.

    ``files`` are the texts of the files that a published model has beside its tokenizer.json, by their names
    (``statewise.conventions.published.FILES``). With any, ``conventions`` says what they say: prompts are then encoded
    as published, and generation stops at the model's own end tokens.

    Errors:  DataError if the file is missing or not a tokenizer, or if it has no special token to begin documents.
    """

    kind = "tokenizers"

    def __init__(self, source: str | Path, *, name: str | None = None, files: Mapping[str, str] | None = None) -> None:
        import tokenizers

        if isinstance(source, str) and (name is not None or source.lstrip()[:1] == "{"):
            name, self.json = name or "the tokenizer's JSON", source
        else:
            name, self.json = read_tokenizer_file(Path(source))
        if not self.json.strip():
            raise DataError(f"{name} is not a tokenizer.json: it is empty; expected a file that Tokenizer.save() wrote")
        try:
            content = parse_json(self.json, "the file")
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
            self._tokenizer = tokenizers.Tokenizer.from_str(self.json)
        except BaseException as error:  # the library raises bare Exception for JSON that is no tokenizer, and panics
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise DataError(
                f"{name} is not a tokenizer.json ({reason(error)}); expected a file that Tokenizer.save() wrote"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError(f"{name} has an empty vocabulary; expected a trained tokenizer")
        check_ids(name, vocabulary, len(self.json))
        self.vocab_size = max(vocabulary.values()) + 1  # ids may have gaps, so not the number of entries
        is_token = np.zeros(self.vocab_size, bool)
        is_token[list(vocabulary.values())] = True
        self.gaps: Sequence[int] = np.flatnonzero(~is_token).tolist()
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: index for index, token in added.items() if token.special}
        self.special_names: Mapping[str, int] = special  # of special tokens, and their ids
        self._special = frozenset(special.values())
        self.conventions: Conventions | None = None
        if files:
            where = Path(name).parent
            self.conventions = read_conventions(files, where, self._tokenizer.token_to_id, self.vocab_size)
        others = () if self.conventions is None else (self.conventions.begin_id, *self.conventions.end_ids)
        self.document_token = choose_document_token(name, special, others)
        try:
            self.prefix: Sequence[int] = list(islice(put_before(content.get("post_processor")), LONGEST_PREFIX + 1))
        except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{name} has a post_processor that cannot be read ({type(error).__name__}: {reason(error)}); expected "
                "one that Tokenizer.save() wrote"
            ) from error
        if len(self.prefix) > LONGEST_PREFIX:
            raise DataError(f"{name} puts more than {LONGEST_PREFIX:,} tokens before a text; expected one or two")
        for token in self.prefix:
            if type(token) is not int or not 0 <= token < self.vocab_size or not is_token[token]:
                shown = excerpt(token)
                raise DataError(f"{name} puts {shown} before a text, which is not a token of its vocabulary")

    def encode(self, text: str) -> list[int]:
        """The tokens of the text; nothing is added."""
        return self._ids(self._tokenizer, text, False)

    def encode_published(self, text: str, *, whole: bool = True) -> list[int]:
        """The tokens of the text as the published tokenizer has them: the names of special tokens are these tokens,
        and to a ``whole`` text its post-processor adds what it adds. As ``transformers`` encodes a prompt; for text
        of strangers use :meth:`encode`."""
        if self.conventions is not None and self.conventions.special_is_text:
            tokenizer = self._tokenizer
        else:
            tokenizer = self._published
        return self._ids(tokenizer, text, whole)

    @cached_property
    def unknown_token(self) -> str | None:
        """What a byte-pair encoding reads where it has no token for a letter; None: nothing stands for such letters."""
        import tokenizers

        model = self._tokenizer.model
        return model.unk_token if isinstance(model, tokenizers.models.BPE) else None

    def unknown_letters(self, text: str) -> list[str]:
        """The letters of the text that :attr:`unknown_token` stands for, each once."""
        name, normalizer = self.unknown_token, self._tokenizer.normalizer
        unknown = None if name is None else self._tokenizer.token_to_id(name)
        if unknown is None:
            return []
        found = [letter for letter in dict.fromkeys(text) if self.encode(letter) == [unknown]]
        return [letter for letter in found if (normalizer.normalize_str(letter) if normalizer else letter) != name]

    @cached_property
    def _published(self) -> tokenizers.Tokenizer:
        """One of its own: a switch of the other would be seen by other threads."""
        import tokenizers

        published = tokenizers.Tokenizer.from_str(self.json)
        published.no_truncation()
        published.no_padding()
        return published

    def _ids(self, tokenizer: tokenizers.Tokenizer, text: str, whole: bool) -> list[int]:
        try:
            return list(tokenizer.encode(text, add_special_tokens=whole).ids)
        except (TypeError, UnicodeEncodeError) as error:  # lone surrogates: which of the two depends on the version
            raise DataError("the text is not valid Unicode; a tokenizer.json needs text that UTF-8 can hold") from error
        except Exception as error:  # the library's, of a vocabulary that lacks what the text needs
            raise DataError(f"the tokenizer cannot encode the text: {reason(error)}") from error

    def encode_bytes(self, data: bytes) -> np.ndarray:
        """(n,) unsigned integers. DataError (caused by the UnicodeDecodeError) if the bytes are not UTF-8."""
        return np.array(self.encode(text_of(data)), token_dtype(self.vocab_size))

    def decode(self, ids: Iterable[int]) -> str:
        """The text, by the tokenizer's own decoder; special tokens stand for nothing."""
        return self._tokenizer.decode([*filter(self._is_text, checked(ids))], skip_special_tokens=True)

    def _is_text(self, token: int) -> bool:
        return token < self.vocab_size and token not in self._special

    def token_bytes(self, ids: Iterable[int]) -> int:
        """The UTF-8 length of ``decode(ids)``: exact where decoding restores the text and no character is cut."""
        return len(self.decode(ids).encode("utf-8"))

    def stream_decoder(self) -> StreamDecoder:
        """Decodes a few tokens at a time, never all of them: O(1) a token.

        Joined, its pieces are ``decode`` of all tokens, for every decoder that looks no further than to the token
        before; only ill-formed UTF-8 of more than 64 tokens may show another number of replacement characters.
        """
        return FileStreamDecoder(self.decode, self._is_text)


def text_of(data: bytes) -> str:
    """Errors: DataError (caused by the UnicodeDecodeError) if the bytes are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8 at byte {error.start} (0x{data[error.start]:02x}); "
            'convert it to UTF-8, or use the "bytes" tokenizer, which takes any bytes'
        ) from error


def load_tokenizer(spec: str) -> Tokenizer:
    """``"bytes"``, ``"bases"``, or the path of a tokenizer.json (or of the folder it lies in)."""
    if spec == "bytes":
        return ByteTokenizer()
    if spec == "bases":
        from statewise.data.bases import BasesTokenizer

        return BasesTokenizer()
    found = FileTokenizer(Path(spec))
    if found.vocab_size == 16:  # perhaps that of bases, as a checkpoint holds it
        from statewise.data.bases import BasesTokenizer

        bases = BasesTokenizer()
        return bases if bases.fingerprint == found.fingerprint else found
    return found


def require_same_tokenizer(tokenizer: Tokenizer, fingerprint: str, owner: str) -> None:
    """DataError unless ``tokenizer`` has this fingerprint; ``owner`` says whose it is ("the checkpoint runs/a/...")."""
    if tokenizer.fingerprint != fingerprint:
        raise DataError(
            f"the tokenizer does not match: {owner} was made with the tokenizer {fingerprint[:12]}, "
            f"given {describe_tokenizer(tokenizer)} {tokenizer.fingerprint[:12]}; use the one it was made with"
        )


def require_fits(tokenizer: Tokenizer, vocab_size: int, as_: type[StatewiseError] = InputError) -> None:
    """An error unless a model of this vocabulary has all of its ids; it may have more, which pad it to a multiple."""
    if tokenizer.vocab_size > vocab_size:
        raise as_(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model only {vocab_size}; "
            "use the tokenizer that the model was trained with"
        )


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """A few words for messages and reports."""
    if tokenizer.kind == "bytes":
        return "bytes"
    talks = tokenizer.conventions is not None and tokenizer.conventions.chat_template is not None
    return f"tokenizer.json of {tokenizer.vocab_size} tokens{', with a chat template' if talks else ''}"
