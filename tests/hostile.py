"""Files that somebody made to do harm, and how they are refused."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest

from statewise.errors import DataError, StatewiseError

BOMB = 70 << 20  # bytes of zeros, more than any small file may unfold to


def refused(call: Callable[[], Any], kind: type[StatewiseError] = DataError) -> str:
    """What the refusal says: one line that can be shown, and that quotes no more than a little."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text.isprintable(), repr(text)
    assert len(text) <= 400
    return text


def batch(labels: Any, data: Any) -> bytes:
    return pickle.dumps({b"labels": labels, b"data": data}, 2)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


LONG = text("a" * (1 << 20))


ENCODED_OFTEN = b"c_codecs\nencode\nq\x00" + LONG + text("latin1") + b"\x86q\x01R" + b"h\x00h\x01R" * 3000
