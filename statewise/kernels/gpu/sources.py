"""The files that a Triton kernel is made of, and a digest of them: what an answer about the kernel holds for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

_ROOMS = Path(__file__).parents[1]
_IMPORT = re.compile(r"^from statewise\.kernels\.(\w+)\.(triton\w*) import", re.MULTILINE)


def sources(kernel: str) -> list[Path]:
    """The kernel's own files, and those of other rooms that they import. Triton need not be there."""
    waiting, found = sorted((_ROOMS / kernel).glob("triton*.py")), list[Path]()
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found.append(path)
            waiting += [_ROOMS / room / f"{name}.py" for room, name in _IMPORT.findall(path.read_text("utf-8"))]
    return sorted(found)


def digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes().replace(b"\r\n", b"\n") for path in files)).hexdigest()[:16]
