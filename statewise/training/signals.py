"""Ctrl-C and SIGTERM: asked once, a run stops after its step; asked twice, at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ClassVar

ASKED = 1 << 16  # in the place of a signal's number: a callback of the run asked for its end


class Stopped(BaseException):
    """A signal asked for the end; what was finished is kept. Nothing that catches errors on the way stops it."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


@contextmanager
def stopping_at_signals() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM are :class:`Stopped`, at once: what is not finished is not kept anyway."""

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


class StopSignals:
    """Within a ``with``, notes the first SIGINT or SIGTERM in ``received``; the second one kills the process.

    Python only lets the main thread handle signals. In another thread this does nothing.

    before_the_end: is called before the second one kills
    """

    present: ClassVar[StopSignals | None] = None  # that which is in use
    any_came: ClassVar[bool] = False  # whether one of them has noted a signal, or was asked

    def __init__(self, before_the_end: Callable[[], None] | None = None) -> None:
        self.received: int | None = None
        self._signals = 0
        self._before_the_end = before_the_end
        self._before: dict[int, Any] = {}

    @classmethod
    def ask(cls, number: int) -> bool:
        """From any thread, as a first signal would, but without one: the next signal does not kill, whichever of the
        two comes first. False: no ``with`` is in use.
        """
        present = cls.present
        if present is None:
            return False
        present._note(number)
        return True

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
            StopSignals.present = self
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            if self._before_the_end is not None:
                self._before_the_end()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._note(number)

    def _note(self, number: int) -> None:
        self.received, StopSignals.any_came = self.received or number, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if StopSignals.present is self:
            StopSignals.present = None
