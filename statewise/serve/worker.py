"""A thread that calls one function after the other: what waits for a disk waits there."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("statewise.serve")


class Worker:
    """Functions are called in the order in which they were given. One that fails is noted in the log."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"statewise-{name}", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """How many functions are still to be called, about."""
        return self._calls.qsize()

    def call(self, function: Callable[[], None]) -> None:
        """Soon, in the thread."""
        self._calls.put(function)

    def close(self, seconds: float = 60.0) -> None:
        """Waits until all have been called."""
        self._calls.put(None)
        self._thread.join(timeout=seconds)

    def _run(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except Exception:
                log.exception("a call in the background failed")
