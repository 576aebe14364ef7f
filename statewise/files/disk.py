"""Until what was written is on the disk, and not only on its way there."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32" and path.is_dir():  # cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """The same of a folder with all that is in it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
