"""Answers of HTTP: streams of events, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from statewise.errors import StatewiseError
from statewise.serve.asking import ClientGoneError
from statewise.serve.errors import RequestError

GONE = 499  # a status for the log: nobody is there to read it
log = logging.getLogger("statewise.serve")
Handler = Callable[[Request], Awaitable[Response]]


class EventStream(Response):
    """Lines as they are made. When the client goes, the lines are closed."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._lines) as lines:  # type: ignore[type-var]
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
                await asyncio.sleep(0)  # so that a closed connection is noticed before more is written into it
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def as_request_error(error: Exception, request_id: str) -> RequestError:
    """Errors of the package are those of what was asked for; others are ours, and in the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StatewiseError):
        return RequestError(str(error))
    log.error("id=%s failed", request_id, exc_info=error)
    return RequestError("the server failed; its log has the reason under the request's id", status=500)


def error_response(found: RequestError) -> Response:
    """An error in OpenAI's form."""
    headers = {} if found.retry_after is None else {"retry-after": f"{found.retry_after:.0f}"}
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(found.body(), found.status, headers)


def answered(handler: Handler, path: str) -> Handler:
    """The same, whatever happens within; ``path`` is what the log and the metrics call it."""

    async def call(request: Request) -> Response:
        request.scope["statewise_path"] = path
        try:
            return await handler(request)
        except ClientGoneError:
            return Response(status_code=GONE)
        except Exception as error:
            return error_response(as_request_error(error, id_of(request)))

    return call


def id_of(request: Request) -> str:
    """The request's id, as the guard has given it."""
    return str(request.scope.get("statewise_id", ""))
