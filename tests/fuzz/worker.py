"""One process that runs cases of one target, one after the other, and says on its standard output which.

It is a process of its own because a case may end it: by a segmentation fault, by the limit on memory, or by hanging.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import torch

from fuzz.draw import Draw
from fuzz.targets import TARGETS


def run(target: str, first: int) -> NoReturn:
    """Cases first, first + 1, ...: a line ``{"case": n}`` before each, and ``{"finding": ...}`` if there is one."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check = TARGETS[target].load()
    if "LD_PRELOAD" not in os.environ:  # a sanitizer takes terabytes of addresses for its notes
        _limit_memory(TARGETS[target].memory)
    with tempfile.TemporaryDirectory(prefix="statewise-fuzz-") as folder:
        os.environ["STATEWISE_CACHE"] = str(Path(folder) / "cache")
        os.chdir(folder)
        case = first
        while True:
            _say(case=case)
            draw = Draw(case)
            try:
                check(draw)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                line = f"{type(error).__name__}: {error}"
                _say(finding=line, notes=draw.notes, where=f"{Path(where.filename).name}:{where.lineno}")
            case += 1


def _limit_memory(extra: int | None) -> None:
    if extra is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _say(**record: object) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
