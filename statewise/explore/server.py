"""The page, and the calls of its model, for one person on this machine."""

from __future__ import annotations

import inspect
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from statewise.configuration import parse_json
from statewise.errors import ConfigError, InputError, StatewiseError, excerpt, few, reason

HOST = "127.0.0.1"
LARGEST = 200_000  # bytes of a question


# What a call's field may be, by its annotation
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a text"),
    "str | None": (lambda value: value is None or isinstance(value, str), "a text"),
    "int": (lambda value: type(value) is int, "a whole number"),
    "float": (lambda value: type(value) is float or (type(value) is int and abs(value) < 1 << 1023), "a number"),
    "Sequence[int]": (lambda value: isinstance(value, list) and all(type(i) is int for i in value), "whole numbers"),
}


def check_fields(call: Callable[..., Any], question: Mapping[str, Any]) -> None:
    """Errors: InputError unless the question has the fields that the call takes, each of its kind."""
    fields = inspect.signature(call).parameters
    missing = [name for name, field in fields.items() if name not in question and field.default is field.empty]
    unknown = [name for name in question if name not in fields]
    for names, what in ((missing, "lacks"), (unknown, "has unknown fields:")):
        if names:
            raise InputError(f"the question {what} {few(names)}; its fields are {', '.join(fields) or 'none'}")
    for name, value in question.items():
        fits, kind = KINDS.get(str(fields[name].annotation), (lambda value: True, ""))
        if not fits(value):
            raise InputError(f"{name}={excerpt(value)} is not {kind}")


class PageServer(ThreadingHTTPServer):
    """Serves the page at ``address``, and answers POST requests of JSON under it.

    It listens on 127.0.0.1 alone, under a path that nobody can guess, and answers only requests that name it as their
    host. Calls are answered one after the other.

    page:   the page, given the path of the calls (None without any)
    calls:  by name, functions of the fields of a question; their results are sent as JSON
    port:   0 takes a free one
    Errors: ConfigError for a port that is not free.
    """

    daemon_threads = True

    def __init__(
        self, page: Callable[[str | None], str], calls: Mapping[str, Callable[..., Any]] | None = None, port: int = 0
    ) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on port {port}: {error}; use another --port, or leave it out") from error
        self.path = "/" + secrets.token_urlsafe(24)
        self.calls = dict(calls or {})
        self.page = page(f"{self.path}/call" if self.calls else None).encode()
        self.one_by_one = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{self.path}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if not self._known():
            return
        if self.path != f"{self.server.path}/":
            return self._json(HTTPStatus.NOT_FOUND, {"error": "there is nothing here"})
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        if not self._known():
            return
        prefix, _, name = self.path.rpartition("/")
        if prefix != f"{self.server.path}/call" or name not in self.server.calls:
            return self._json(HTTPStatus.NOT_FOUND, {"error": "there is no such call"})
        try:
            question, call = self._question(), self.server.calls[name]
            check_fields(call, question)
            with self.server.one_by_one:
                answer = call(**question)
        except (StatewiseError, TypeError, ValueError) as error:
            return self._json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except Exception as error:  # such as too little memory: the page shows it
            return self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": reason(error)})
        self._json(HTTPStatus.OK, answer)

    def _known(self) -> bool:
        """Whether the request names this server. Other sites reach it under their own names (DNS rebinding)."""
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        origin = self.headers.get("Origin")
        good = self.headers.get("Host") in hosts and (origin is None or origin.removeprefix("http://") in hosts)
        if not good:
            self.close_connection = True
            self._json(HTTPStatus.FORBIDDEN, {"error": "this is not the host that was asked"})
        return good

    def _question(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            self.close_connection = True
            raise InputError(f"a question has at most {LARGEST:,} bytes, and says how many")
        if self.headers.get_content_type() != "application/json":
            self.rfile.read(int(length))
            raise InputError("a question is application/json")
        question = parse_json(self.rfile.read(int(length)), "the question")
        if not isinstance(question, dict):
            raise InputError("a question is a JSON object")
        return question

    def _json(self, status: HTTPStatus, data: Any) -> None:
        self._send(status, "application/json", json.dumps(data).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: the terminal belongs to the command."""
