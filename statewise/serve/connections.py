"""Connections: so many at once, and none that waits for ever to say what it wants."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from statewise.serve.errors import RequestError


def patient_for(seconds: float, most: int) -> type[H11Protocol]:
    """uvicorn's protocol with two limits that it does not have.

    seconds: in which the head of a request has to come, from the connection or from its first byte; then the connection
             is closed. uvicorn's own limit is for the time between two requests
    most:    connections at once; further ones get a 503
    """

    class Patient(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(_refusal(most))
                transport.close()
                return
            self._late = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:  # the head is here; its body has a limit of its own
                self._in_time()
            elif self._late is None:  # the next request of a connection that stays open has begun
                self._late = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._in_time()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._in_time()
            super().on_response_complete()

        def _in_time(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Patient


def _refusal(most: int) -> bytes:
    error = RequestError(f"{most} connections are open, and no more may be; try again soon", status=503)
    body = json.dumps(error.body()).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    )
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def settings(seconds: float, most: int) -> dict[str, Any]:
    """Those of uvicorn that are about connections."""
    return {"http": patient_for(seconds, most), "h11_max_incomplete_event_size": 64 << 10}
