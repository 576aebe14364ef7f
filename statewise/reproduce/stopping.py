"""Ctrl-C and SIGTERM while something is measured that is not worth keeping unfinished."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal asked for the end; what was finished is kept. Nothing that catches errors on the way stops it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


@contextmanager
def stopping_at_signals() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM are :class:`Stopped`, at once: a part that is not finished is not kept anyway."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, stop)
        except ValueError:  # not the main thread, which alone may: Ctrl-C then reaches that one
            break
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
