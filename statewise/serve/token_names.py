"""What log-probabilities call a token, and the bytes that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from statewise.data.stream_decoders import REPLACEMENT
from statewise.data.tokenizers import ByteTokenizer, Tokenizer

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token for one byte, beside a vocabulary of characters


def byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in a vocabulary of byte-level BPE, as GPT-2 has chosen them.

    >>> letters = byte_letters()
    >>> len(letters), letters["A"], letters["Ġ"]
    (256, 65, 32)
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


class TokenNames:
    """The names of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special: Mapping[int, str] = {i: name for name, i in getattr(tokenizer, "special_names", {}).items()}
        self._file = getattr(tokenizer, "_tokenizer", None)
        text = getattr(tokenizer, "json", None)
        self._letters = byte_letters() if text and _is_byte_level(json.loads(text).get("decoder")) else {}

    def text(self, token: int) -> str:
        """The token's text, if that is whole characters; else its bytes, as OpenAI writes them: bytes:\\xe2\\x80."""
        if token in self._special:
            return self._special[token]
        if isinstance(self._tokenizer, ByteTokenizer):
            text = chr(token) if token < 128 else ""
        else:
            text = self._tokenizer.decode([token])
        if text and REPLACEMENT not in text:
            return text
        part = self._part(token)
        return f"token_id:{token}" if not part else "bytes:" + "".join(f"\\x{byte:02x}" for byte in part)

    def bytes(self, token: int) -> list[int] | None:
        """Its bytes; None where they are not known."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return [token] if token < 256 else []
        name = self.text(token)
        if name.startswith(("bytes:", "token_id:")) and (part := self._part(token)) is not None:
            return part
        return None if name == f"token_id:{token}" else list(name.encode())

    def _part(self, token: int) -> list[int] | None:
        """The bytes of a token that is part of a character."""
        if isinstance(self._tokenizer, ByteTokenizer):
            return [token] if token < 256 else None
        entry = None if self._file is None else self._file.id_to_token(token)
        if entry is None:
            return None
        if found := BYTE.fullmatch(entry):
            return [int(found[1], 16)]
        if self._letters and all(letter in self._letters for letter in entry):
            return [self._letters[letter] for letter in entry]
        return None


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(one) for one in decoder.get("decoders") or ())
