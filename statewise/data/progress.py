"""Progress of what takes a while and is done once, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[int, int], None]


def tell(progress: Progress | None, done: int, total: int) -> None:
    """Every 500th, and the last."""
    if progress is not None and (done % 500 == 0 or done == total):
        progress(done, total)


def on_terminal(noun: str) -> Progress | None:
    """A function that writes ``noun``, how many are done and of how many, over and over on one line of stderr; None
    if stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{noun} {done:,} of {total:,}{end}")
        sys.stderr.flush()

    return show
