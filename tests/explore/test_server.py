"""The local server: who it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from statewise.errors import ConfigError, InputError
from statewise.explore.server import LARGEST, PageServer


def double(number: float) -> dict[str, Any]:
    if number < 0:
        raise InputError("number is 0 or more")
    if number == 1000:
        raise RuntimeError("too large")
    return {"number": 2 * number}


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(lambda calls: f"<p>{calls}</p>", {"double": double}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(
    server: PageServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


JSON = {"Content_Type": "application/json"}


def test_the_page_and_a_call(server: PageServer) -> None:
    status, page, headers = ask(server, "GET", f"{server.path}/")
    assert (status, page) == (200, f"<p>{server.path}/call</p>")
    assert headers["Cache-Control"] == "no-store"
    status, answer, _ = ask(server, "POST", f"{server.path}/call/double", b'{"number": 4}', **JSON)
    assert (status, json.loads(answer)) == (200, {"number": 8})
    assert server.address == f"http://127.0.0.1:{server.server_port}{server.path}/"


def test_it_listens_on_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.path) > 30


def test_nobody_without_the_path_gets_anything(server: PageServer) -> None:
    for method, path in (("GET", "/"), ("GET", "/call/double"), ("GET", f"{server.path}x/"), ("GET", server.path)):
        status, answer, _ = ask(server, method, path)
        assert status == 404
        assert server.path not in answer
    assert ask(server, "POST", "/call/double", b'{"number": 4}', **JSON)[0] == 404


def test_other_hosts_and_pages_are_refused(server: PageServer) -> None:
    call = f"{server.path}/call/double"
    assert ask(server, "GET", f"{server.path}/", Host="evil.example")[0] == 403
    assert ask(server, "POST", call, b'{"number": 4}', Origin="http://evil.example", **JSON)[0] == 403
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, "POST", call, b'{"number": 4}', Origin=own, **JSON)[0] == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"number": -1}', "0 or more"),
        (b'{"numbers": 1}', "the question lacks number; its fields are number"),
        (b'{"number": 1, "numbers": 1}', "unknown fields: numbers"),
        (b'{"number": 1, "\\ud800": 1}', "unknown fields: \\ud800"),
        (b'{"number": "x"}', "number='x' is not a number"),
        (b'{"number": ' + b"9" * 400 + b"}", "is not a number"),
        (b'{"number": ' + b"9" * 6000 + b"}", "more than 4,300 digits"),
        (b"[1]", "JSON object"),
        (b"{", "Expecting"),
        (b" " * (LARGEST + 1), "at most"),
    ],
)
def test_bad_questions_are_answered_with_400(server: PageServer, body: bytes, words: str) -> None:
    status, answer, _ = ask(server, "POST", f"{server.path}/call/double", body, **JSON)
    assert status == 400
    assert words in json.loads(answer)["error"]


def test_what_goes_wrong_inside_is_answered_too(server: PageServer) -> None:
    status, answer, _ = ask(server, "POST", f"{server.path}/call/double", b'{"number": 1000}', **JSON)
    assert (status, json.loads(answer)) == (500, {"error": "too large"})


def test_questions_of_another_kind(server: PageServer) -> None:
    call = f"{server.path}/call/double"
    assert ask(server, "POST", call, b'{"number": 4}', Content_Type="text/plain")[0] == 400  # what a form can send
    assert ask(server, "POST", f"{server.path}/call/page", b"{}", **JSON)[0] == 404


def test_a_port_that_is_taken(server: PageServer) -> None:
    with pytest.raises(ConfigError, match="use another --port"):
        PageServer(lambda calls: "", port=server.server_port)
