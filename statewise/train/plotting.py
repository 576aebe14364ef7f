"""Figures in files, drawn with matplotlib where it is installed, without a window."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.errors import ConfigError, InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def require_plot(path: Path) -> None:
    """What can be refused before there is anything to draw.

    Errors: InputError if matplotlib is not installed; ConfigError for a name or folder that a figure cannot have.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError('plots need matplotlib; install it: pip install "statewise[plot]"')
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"a figure cannot be written to {path}; give a name that ends in one of {', '.join(SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"a figure cannot be written to {path}: there is no folder {path.parent}")


@contextmanager
def figure(path: Path, width: float = 6.4, height: float = 4.8) -> Iterator[Figure]:
    """An empty figure, in inches, that is written to ``path`` at the end of the ``with``.

    Errors: as :func:`require_plot`.
    """
    require_plot(path)
    from matplotlib.figure import Figure  # not pyplot, which would open a window, and keeps all figures

    drawn = Figure(figsize=(width, height), layout="constrained")
    yield drawn
    drawn.savefig(path, dpi=150)
