"""Paths of a run that lie in its own folder, written so that the folder may be moved: ``{run}/data/arrays.npz``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

OWN = "{run}/"  # no absolute path begins so, and a run.json holds no other


def written_within(data: Any, folder: Path) -> Any:
    """The JSON data of a run, with :data:`OWN` instead of the folder's path.

    >>> written_within({"data": {"folder": "/runs/a/data/arrays.npz"}}, Path("/runs/a"))
    {'data': {'folder': '{run}/data/arrays.npz'}}
    """
    inside = str(folder.absolute()) + os.sep
    return _texts(data, lambda text: OWN + Path(text[len(inside) :]).as_posix() if text.startswith(inside) else text)


def read_within(data: Any, folder: Path) -> Any:
    """The inverse of :func:`written_within`, wherever the folder is now."""
    here = folder.absolute()
    return _texts(data, lambda text: str(here / text.removeprefix(OWN)) if text.startswith(OWN) else text)


def _texts(data: Any, change: Callable[[str], str]) -> Any:
    if isinstance(data, Mapping):
        return {name: _texts(value, change) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_texts(value, change) for value in data]
    return change(data) if isinstance(data, str) else data
