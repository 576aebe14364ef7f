"""Changes to the bytes of a good file: noise, cuts, and what somebody would write who means harm."""

from __future__ import annotations

import json
import pickletools
import re
import struct
from random import Random
from typing import Any

INTEGERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
NUMBERS = (
    "0", "-1", "4000000000", "100000000000", "9223372036854775808", "1" * 30, "1" * 5000, "1e308", "-1e400", "1e-320",
    "nan", "inf", "NaN", "", "0x10", "1.5", "９", "?", "9999-12-31", "0001-01-01", "2024-02-30",
)  # fmt: skip
TEXTS = ("", "\x00", "a\nb", "é" * 300, "x" * 5000, "\ud800", "\u2028", "../../etc/passwd", "/dev/zero", "'\"\\", "\t")
CONSTANTS = ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1" * 5000)


def mutated(random: Random, data: bytes) -> bytes:
    """One to three changes; of JSON half of the time to its values."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if data[:1] in (b"{", b"[") and random.random() < 0.5:
            data = json_changed(random, data)
        else:
            data = random.choice(CHANGES)(random, data)
    return data


def flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))] if random.random() < 0.8 else data[random.randint(0, len(data)) :]


def spliced(random: Random, data: bytes) -> bytes:
    """A piece is put somewhere else, twice or often."""
    i, j, k = (random.randint(0, len(data)) for _ in range(3))
    piece = data[min(i, j) : max(i, j)][:4096]
    return data[:k] + piece * random.choice((1, 2, 50)) + data[k + random.choice((0, len(piece))) :]


def removed(random: Random, data: bytes) -> bytes:
    i = random.randint(0, len(data))
    return data[:i] + data[i + random.choice((1, 2, 16, 200)) :]


def extreme(random: Random, data: bytes) -> bytes:
    """An integer field of 1 to 8 bytes, in either order; near the beginning, where headers are, more often."""
    width = random.choice((1, 2, 4, 8))
    value = random.choice(INTEGERS) & ((1 << 8 * width) - 1)
    place = random.randint(0, min(len(data), 256) if random.random() < 0.6 else len(data))
    return data[:place] + value.to_bytes(width, random.choice(("little", "big"))) + data[place + width :]


def other_number(random: Random, data: bytes) -> bytes:
    """A number that is written in digits."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return flipped(random, data)
    match = random.choice(found)
    return data[: match.start()] + random.choice(NUMBERS).encode() + data[match.end() :]


def other_text(random: Random, data: bytes) -> bytes:
    """A cell, a line or a word."""
    found = list(re.finditer(random.choice((rb"[^,\n\t:]+", rb"[^\n]+", rb"\w+")), data[:20_000]))
    if not found:
        return flipped(random, data)
    match = random.choice(found)
    text = random.choice((*TEXTS, *NUMBERS)).encode("utf-8", "surrogatepass")
    return data[: match.start()] + text + data[match.end() :]


CHANGES = (flipped, cut, spliced, removed, extreme, extreme, other_number, other_text)


def pickle_changed(random: Random, data: bytes) -> bytes:
    """Of a pickle: between two operations comes what leaves the stack as it was, after calls or lists that unfold."""
    try:
        places = [place for _, _, place in pickletools.genops(data) if place]
    except Exception:  # it was changed before
        return flipped(random, data)
    if not places:
        return flipped(random, data)
    n = random.choice((1, 30, 3_000))
    text = _pickled_text("a" * random.choice((1, 1 << 10, 1 << 20)))
    size = b"\x8a\x08" + random.choice(INTEGERS[:-1]).to_bytes(8, "little")
    way = random.randrange(5)
    if way == 0:  # a call whose function, arguments and result are remembered, and called again
        call = b"c_codecs\nencode\nr\xf0\xff\xff\x00" + text + _pickled_text("latin1") + b"\x86r\xf1\xff\xff\x00R0"
        inserted = call + b"j\xf0\xff\xff\x00j\xf1\xff\xff\x00R0" * n
    elif way == 1:  # a call that makes as many bytes as it is told
        inserted = random.choice((b"c__builtin__\nbytearray\n", b"cbuiltins\nbytearray\n")) + size + b"\x85R0"
    elif way == 2:  # a list in a list, twice in each
        inserted = b"]" + b"r\xf2\xff\xff\x00](j\xf2\xff\xff\x00j\xf2\xff\xff\x00e" * n + b"0" * (n + 1)
    elif way == 3:  # of PyTorch's own
        name = random.choice((b"ctorch\nTensor\n", b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n"))
        inserted = name + size + b"\x85R0"
    else:  # text that its length denies
        inserted = b"X" + struct.pack("<I", random.choice(INTEGERS[:9])) + b"aaaa0"
    place = random.choice(places)
    return data[:place] + inserted + data[place:]


def _pickled_text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def json_changed(random: Random, data: bytes) -> bytes:
    """Of JSON, or a line of it: a value is another, a key is gone or there twice, a list is long."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines)) if len(lines) > 1 and lines[0][-1:] == b"}" else None
    try:
        tree = json.loads(data if at is None else lines[at])
        text = _changed_text(random, tree)
    except (ValueError, RecursionError):
        return flipped(random, data)
    if at is None:
        return text.encode("utf-8", "surrogatepass")
    lines[at] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _changed_text(random: Random, tree: Any) -> str:
    """A place in the tree is marked, and the mark is replaced in the text: so it may be what no writer writes."""
    holder = {"": tree}
    parent: Any = holder
    key: Any = ""
    while isinstance(parent[key], (dict, list)) and parent[key] and random.random() < 0.85:
        parent = parent[key]
        key = random.choice(list(parent)) if isinstance(parent, dict) else random.randrange(len(parent))
    old = parent[key]
    how = random.randrange(6)
    if how == 0 and parent is not holder:
        del parent[key]
        return json.dumps(holder[""])
    if how == 1 and isinstance(parent, dict) and parent is not holder:
        parent[key] = "@mark@"
        name = json.dumps(key)
        return json.dumps(holder[""]).replace('"@mark@"', f"{json.dumps(old)}, {name}: {json.dumps(old)}", 1)
    parent[key] = "@mark@"
    return json.dumps(holder[""]).replace('"@mark@"', _value(random, old), 1)


def _value(random: Random, old: Any) -> str:
    how = random.randrange(8)
    if how == 0:
        return random.choice(CONSTANTS)
    if how == 1:
        n = random.choice((3, 100, 900, 100_000))
        return "[" * n + "]" * n
    if how == 2:
        return json.dumps(random.choice(TEXTS))
    if how == 3:
        return str(random.choice((-1, *INTEGERS, 4_000_000_000)))
    if how == 4:
        return json.dumps([old] * random.choice((2, 100)))
    if how == 5:
        return json.dumps({"a": old})
    return random.choice(("null", "true", "[]", "{}", '""', "-1", "0.5"))
