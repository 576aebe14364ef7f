"""Characters and bytes as tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from statewise.errors import DataError

SPECIALS = ("<pad>", "<unk>", "<eos>")
PAD, UNKNOWN, EOS = range(3)
BYTES = ("<pad>", "<eos>", *(f"{byte:02x}" for byte in range(256)))
BYTE_EOS, FIRST_BYTE = 1, 2


def characters(counts: Mapping[str, int], min_count: int = 1) -> tuple[str, ...]:
    """The specials, then the characters that occur ``min_count`` times or more: the most frequent first, of equally
    frequent ones the smaller code point. The order of torchtext's ``build_vocab_from_iterator``.

    >>> characters({"r": 2, "d": 1, "b": 2, "c": 1, "a": 5}, 2)
    ('<pad>', '<unk>', '<eos>', 'a', 'b', 'r')
    """
    kept = sorted((-count, character) for character, count in counts.items() if count >= min_count)
    vocabulary = (*SPECIALS, *(character for _, character in kept))
    if len(vocabulary) > 1 << 16:
        raise DataError(f"the texts have {len(vocabulary):,} different characters, more than 65,536 tokens")
    return vocabulary


class CharacterEncoder:
    """Text to tokens, with an end token behind; a character that is not in the vocabulary becomes ``<unk>``.

    >>> CharacterEncoder(("<pad>", "<unk>", "<eos>", "a", "b", "r"))("cab").tolist()
    [1, 3, 4, 2]
    """

    def __init__(self, vocabulary: tuple[str, ...]) -> None:
        self._table = np.full(0x110000, UNKNOWN, np.uint16)
        self._table[[ord(character) for character in vocabulary[len(SPECIALS) :]]] = np.arange(
            len(SPECIALS), len(vocabulary)
        )

    def __call__(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        return np.append(self._table[codes], np.uint16(EOS))


def byte_tokens(data: bytes) -> np.ndarray:
    """Each byte + 2, with an end token behind.

    >>> byte_tokens(b"ab").tolist()
    [99, 100, 1]
    """
    return np.append(np.frombuffer(data, np.uint8).astype(np.uint16) + FIRST_BYTE, np.uint16(BYTE_EOS))
