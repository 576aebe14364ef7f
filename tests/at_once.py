"""Work that several threads begin together, and Python changes between them as often as it can."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Sequence[Callable[[], T]]) -> list[T]:
    """What each returns; one thread each, which wait for each other before they begin."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(work))

    def run(i: int) -> None:
        try:
            barrier.wait()
            results[i] = work[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(work))]


@contextmanager
def changing_often() -> Iterator[None]:
    """Threads take turns after a microsecond, and not after five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
