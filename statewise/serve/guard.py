"""What every request passes: who may ask, how often, and what is written down about it."""

from __future__ import annotations

import collections
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from statewise.serve.errors import RequestError

if TYPE_CHECKING:
    from statewise.serve.app import Server

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
MOST_CLIENTS = 4096  # whose rate is remembered
log = logging.getLogger("statewise.serve")


class Rate:
    """So many requests a minute of each client, with bursts of as many as ten seconds allow.

    >>> rate = Rate(60)
    >>> [rate.wait("a", now=0.0) for _ in range(11)][-2:]
    [0.0, 1.0]
    """

    def __init__(self, per_minute: float) -> None:
        self._each = 60 / per_minute
        self._ahead = max(10.0, self._each)
        self._next: collections.OrderedDict[str, float] = collections.OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Seconds until this client may ask; with 0 it has asked."""
        due = max(self._next.get(client, now), now)
        if due + self._each > now + self._ahead + 1e-9:
            return due + self._each - now - self._ahead
        self._next[client] = due + self._each
        self._next.move_to_end(client)
        while len(self._next) > MOST_CLIENTS:
            self._next.popitem(last=False)
        return 0.0


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: Any, server: Server, error_response: Callable[[RequestError], Response]) -> None:
        self._app, self._server, self._error_response = app, server, error_response
        config = server.config
        self._rate = None if config.requests_per_minute is None else Rate(config.requests_per_minute)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if ID.fullmatch(given) else "req-" + secrets.token_hex(8)
        scope["statewise_id"] = request_id
        begun, status = time.monotonic(), 0

        async def send_on(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            try:
                self._check(scope, headers)
            except RequestError as error:
                await self._error_response(error)(scope, receive, send_on)
            else:
                await self._app(scope, receive, send_on)
        finally:
            self._note(scope, request_id, status, time.monotonic() - begun)

    def _check(self, scope: Any, headers: dict[str, str]) -> None:
        config, path = self._server.config, scope["path"]
        if config.is_local and _host(headers.get("host", "")) not in (*LOCAL_NAMES, config.host):
            # a page of a stranger whose name leads to this machine
            raise RequestError("the Host header names another machine; use 127.0.0.1 or localhost", status=403)
        if path == "/health":
            return
        if config.api_key is not None:
            kind, _, key = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(key.strip().encode("latin-1"), config.api_key.encode())
            if kind.lower() != "bearer" or not same:
                raise RequestError(
                    "the API key is missing or wrong; send Authorization: Bearer KEY",
                    status=401,
                    code="invalid_api_key",
                )
        if self._server.draining:
            raise RequestError("the server is stopping; ask another one", status=503, retry_after=10.0)
        if int_of(headers.get("content-length", "0")) > config.max_body:
            raise RequestError(f"the body has more than {config.max_body:,} bytes", status=413)
        if self._rate is not None and path != "/metrics":
            client = (scope.get("client") or ("", 0))[0]
            wait = self._rate.wait(client, time.monotonic())
            if wait:
                raise RequestError(
                    f"{config.requests_per_minute:g} requests a minute are allowed; try again later",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after=max(1.0, wait),
                )

    def _note(self, scope: Any, request_id: str, status: int, seconds: float) -> None:
        """One line in the log: nothing of what was said."""
        path = scope.get("statewise_path", "other")
        if status:
            self._server.metrics.requests.add(1, path=path, method=_method(scope["method"]), status=str(status))
        self._server.metrics.seconds.observe(seconds)
        level = logging.DEBUG if path in ("/health", "/metrics") else logging.INFO
        log.log(level, "id=%s %s %s %s %.3fs", request_id, scope["method"], path, status or "closed", seconds)


def int_of(text: str) -> int:
    """A number of a header; 0 for anything else.

    >>> int_of("12"), int_of("x"), int_of("9" * 5000)
    (12, 0, 9223372036854775807)
    """
    return (int(text) if len(text) < 19 else (1 << 63) - 1) if text.isascii() and text.isdigit() else 0


def _host(header: str) -> str:
    """The name without its port.

    >>> _host("[::1]:8000"), _host("localhost:80")
    ('::1', 'localhost')
    """
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^:]*)(?::\d+)?", header.strip())
    return "" if found is None else (found[1] or found[2] or "").lower()


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "other"
