"""JSON that people read beside programs: a record or a row of a table is a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statewise.checkpoints.atomic import write_file

WIDTH = 160  # of a line that holds more than one record


def write_json(path: Path, data: Any) -> None:
    write_text(path, compact(data) + "\n")


def write_text(path: Path, text: str) -> None:
    content = text.encode()
    write_file(path, len(content), lambda target: _write(target, content))


def _write(target: Path, content: bytes) -> None:
    target.write_bytes(content)


def compact(data: Any, indent: int = 0) -> str:
    """Like ``json.dumps(data, indent=1)``, but a list or object of nothing but numbers, text and lists of these is one
    line, and so is whatever is short.

    >>> compact({"a": [1, 2], "b": 3})
    '{"a": [1, 2], "b": 3}'
    """
    line = json.dumps(data, allow_nan=False)
    if not isinstance(data, (dict, list)) or len(line) + indent <= WIDTH or (indent and _depth(data) <= 2):
        return line
    if isinstance(data, dict):
        parts = [f"{json.dumps(key)}: {compact(value, indent + 1)}" for key, value in data.items()]
    else:
        parts = [compact(value, indent + 1) for value in data]
    pad, (first, last) = "\n" + " " * indent, "{}" if isinstance(data, dict) else "[]"
    return f"{first}{pad} {f',{pad} '.join(parts)}{pad}{last}"


def _depth(data: Any) -> int:
    """The depth of lists and objects in each other; a list of numbers or pairs counts once, an object in an object
    twice.
    """
    if isinstance(data, dict):
        return 1 + max((_depth(x) + isinstance(x, dict) for x in data.values()), default=0)
    if not isinstance(data, list):
        return 0
    pairs = all(
        not isinstance(x, (dict, list)) or (isinstance(x, list) and len(x) <= 3 and not _depth(x[0]))
        for x in data
        if x != []
    )
    return 1 if pairs else 1 + max(map(_depth, data))


def finite(data: Any) -> Any:
    """JSON data in which a number that is not finite is null, and every key a string."""
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
