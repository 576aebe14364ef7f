"""One request and its sequences: events from the engine's thread, as the loop of the web server awaits them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from statewise.serve.engine import Deliver, Engine
from statewise.serve.job import Done, Event, Failed, Job

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


class Asking:
    """The sequences of a request. If it is left before their end, they are cancelled, and their rows are free."""

    def __init__(self, engine: Engine, receive: Receive) -> None:
        self._engine, self._receive = engine, receive
        self._events: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        self._open: dict[int, Job] = {}

    def sink(self, i: int) -> Callable[[Event], None]:
        """Where the events of sequence i go, in the loop's thread."""
        return lambda event: self._events.put_nowait((i, event))

    def begin(self, jobs: Sequence[Job], *, goes_on: bool = False) -> None:
        """Errors: RequestError if too many wait."""
        self._engine.submit(jobs, goes_on=goes_on)
        self._open = dict(enumerate(jobs))

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """In their order, up to the last sequence's end.

        Errors:  ClientGoneError if the client has closed the connection; what a sequence failed with.
        """
        watch = asyncio.create_task(self._watch())
        try:
            while self._open:
                item = await self._events.get()
                if item is None:
                    raise ClientGoneError
                i, event = item
                if isinstance(event, (Done, Failed)):
                    self._open.pop(i, None)
                if isinstance(event, Failed):
                    raise event.error
                yield item
        finally:
            watch.cancel()
            self.leave()

    def leave(self) -> None:
        """Cancels what has not ended."""
        if self._open:
            self._engine.cancel(list(self._open.values()))
            self._open = {}

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(None)


def into(loop: asyncio.AbstractEventLoop) -> Deliver:
    """Brings events from the engine's thread into the loop's, where their sinks are."""

    def put(events: list[tuple[Callable[[Event], None], Event]]) -> None:
        for sink, event in events:
            sink(event)

    def deliver(events: list[tuple[Callable[[Event], None], Event]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(put, events)

    return deliver
