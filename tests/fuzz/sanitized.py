"""The C kernels built with the address and undefined-behaviour sanitizers, for processes that are to be watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from statewise.native import build


class NoSanitizer(Exception):
    """Why there is none here; one line."""


def runtime_of(sanitizer: str) -> str | None:
    """The shared library of a sanitizer, which has to be loaded before anything else."""
    try:
        command = [*build.compiler(), f"-print-file-name=lib{sanitizer}.so"]
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except (build.BuildError, OSError):
        return None
    return found if os.path.isabs(found) else None


def environment(library: Path, *, only: tuple[str, ...] = ()) -> dict[str, str]:
    """What to add to the environment of a process that loads a checked library, which is built here unless it is there.

    Errors: NoSanitizer.
    """
    preload = runtime_of("asan")
    if preload is None or not sys.platform.startswith("linux"):
        raise NoSanitizer("there is no compiler with an address sanitizer here")
    try:
        if not library.exists():
            build.build(library, only=only, sanitize=True)
    except build.BuildError as error:
        raise NoSanitizer(str(error)) from None
    return {
        "STATEWISE_LIBRARY": str(library),
        "LD_PRELOAD": f"{preload}:{runtime_of('stdc++') or ''}",
        # a request for more memory than there is is PyTorch's to refuse, as it does elsewhere
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "OMP_NUM_THREADS": "1",
    }
