"""A vocabulary of bases: the letters of a nucleic acid, one token each."""

from __future__ import annotations

import json

import numpy as np

from statewise.data.tokenizers import FileTokenizer, token_dtype
from statewise.errors import DataError

BASES = "ACGTNRYSWKMBDHV"  # four bases, any of them, and the letters of two or three of them (IUPAC)
UNKNOWN = "N"
DOCUMENT_TOKEN = "<|endoftext|>"
OTHERS = {
    "U": "in RNA write T in its place",
    "-": "leave gaps out, or write N in their place",
    ".": "leave gaps out, or write N in their place",
    "*": 'a stop belongs to a protein: set data.tokenizer="bytes"',
}
_SPACES = b" \t\r\n\v\f"
_CAPITALS = bytes(range(256)).upper()
NONE, SPACE = 255, 254  # in the table of bytes: no base, and what stands between lines


def _table() -> np.ndarray:
    table = np.full(256, NONE, np.uint8)
    for i, letter in enumerate(BASES, 1):
        table[[ord(letter), ord(letter.lower())]] = i
    table[list(_SPACES)] = SPACE
    return table


class BasesTokenizer(FileTokenizer):
    """A, C, G, T, N and the other ten letters of IUPAC's code are tokens 1 to 15; 0 begins a document. Small letters
    are read as capitals, and line ends and spaces are left out.

    It is a ``tokenizer.json``, which a checkpoint holds as any other; there a letter of a prompt that is not a base
    counts as N, any base, with a warning. Data with such a letter are refused.

    Cost:    of ``encode_bytes``, a look-up for each byte.
    Errors:  DataError for data with a letter that is not a base.

    >>> tokenizer = BasesTokenizer()
    >>> tokenizer.encode("ACgt"), tokenizer.encode_bytes(b"ACg\\nt")
    ([1, 2, 3, 4], array([1, 2, 3, 4], dtype=uint16))
    >>> tokenizer.decode([0, 4, 3])
    'TG'
    """

    _TABLE = _table()

    def __init__(self) -> None:
        super().__init__(_json(), name="the vocabulary of bases")

    def encode_bytes(self, data: bytes) -> np.ndarray:
        """(n,) uint16, one token a base. The same as ``encode``, which takes a thousand times as long."""
        found = self._TABLE[np.frombuffer(data, np.uint8)]
        wrong = np.flatnonzero(found == NONE)
        if len(wrong):
            letter = data[int(wrong[0]) : int(wrong[0]) + 1].decode("latin-1")
            todo = OTHERS.get(
                letter.upper(), 'for a text of other letters, such as a protein, set data.tokenizer="bytes"'
            )
            raise DataError(f"{letter!r} is not a base, one of {BASES}; {todo}")
        return found[found != SPACE].astype(token_dtype(self.vocab_size))

    def held(self, data: bytes) -> bytes:
        """What the tokens of a text hold of it, a byte for each: capitals, without line ends and spaces."""
        return data.translate(_CAPITALS, _SPACES)


def _json() -> str:
    """Byte-pair encoding without a pair."""

    def replaced(pattern: dict[str, str], content: str) -> dict[str, object]:
        return {"type": "Replace", "pattern": pattern, "content": content}

    small = [replaced({"String": letter.lower()}, letter) for letter in BASES]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": UNKNOWN,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {DOCUMENT_TOKEN: 0, **{letter: i for i, letter in enumerate(BASES, 1)}},
        "merges": [],
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": DOCUMENT_TOKEN, **special}],
        "normalizer": {"type": "Sequence", "normalizers": [replaced({"Regex": r"\s"}, ""), *small]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": model,
    }
    return json.dumps(content)
