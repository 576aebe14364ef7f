"""Who may ask, how often and how much; clients that leave; what is counted."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from served_models import build, complete, serving, text_of, wait_until, written

from statewise.errors import ConfigError
from statewise.serve import ServeConfig
from statewise.serve.guard import Rate
from statewise.serve.metrics import Counter, Histogram


def test_a_key() -> None:
    with serving(build(), api_key="secret") as (_, client):
        assert client.get("/v1/models").status_code == 200
        for key in ("", "Bearer", "Bearer wrong", "Basic secret", "secret"):
            response = client.get("/v1/models", headers={"authorization": key})
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/metrics", headers={"authorization": ""}).status_code == 401
        assert client.get("/health", headers={"authorization": ""}).status_code == 200


def test_other_machines_need_a_key() -> None:
    with pytest.raises(ConfigError, match="api_key"):
        ServeConfig(host="0.0.0.0")
    assert ServeConfig(host="0.0.0.0", api_key="x").host == "0.0.0.0"
    with pytest.raises(ConfigError, match="ASCII"):
        ServeConfig(api_key="é")


def test_rate() -> None:
    rate = Rate(60)
    assert all(rate.wait("a", 0.0) == 0 for _ in range(10))
    assert rate.wait("a", 0.5) == pytest.approx(0.5)
    assert rate.wait("b", 0.5) == 0
    assert rate.wait("a", 1.0) == 0
    with serving(build(), requests_per_minute=6) as (_, client):
        codes = [client.get("/v1/models").status_code for _ in range(3)]
        assert codes == [200, 429, 429]
        assert int(client.get("/v1/models").headers["retry-after"]) >= 1
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_size() -> None:
    with serving(build(), max_body=1000) as (_, client):
        big = b'{"model": "' + b"x" * 2000 + b'"}'
        kind = {"content-type": "application/json"}
        assert client.post("/v1/completions", content=big, headers=kind).status_code == 413
        parts = (big[i : i + 100] for i in range(0, len(big), 100))  # without a length that is known before
        assert client.post("/v1/completions", content=parts, headers=kind).status_code == 413


def test_too_many_at_once_are_refused_and_the_others_answered() -> None:
    model = build()
    with serving(model, rows=1, max_waiting=2, max_new_tokens=3000) as (server, client), ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(text_of, client, "a", 300, seed=i, temperature=0.1) for i in range(3)]
        wait_until(lambda: server.engine.counts()["waiting"] == 2)
        asked = {"model": "small", "prompt": "x"}
        response = client.post("/v1/completions", json=asked)
        assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
        assert response.headers["retry-after"] == "1"
        for i, job in enumerate(jobs):
            assert job.result() == written(model, "a", 300, seed=i, temperature=0.1)
        assert client.post("/v1/completions", json=asked | {"n": 3}).status_code == 200
        assert client.post("/v1/completions", json=asked | {"prompt": ["a"] * 4}).status_code == 400


def test_many_inputs_queue_within_the_request() -> None:
    """More than all places of the server, in batches; each has its own vector, and others are let in between."""
    texts = [f"text {i}" for i in range(13)]
    with serving(build(), rows=2, max_waiting=3) as (server, client):
        asked = {"model": "small", "input": texts}
        got = client.post("/v1/embeddings", json=asked).raise_for_status().json()["data"]
        assert [one["index"] for one in got] == list(range(13))
        for i in (0, 7, 12):
            alone = client.post("/v1/embeddings", json=asked | {"input": texts[i]}).json()["data"][0]["embedding"]
            assert got[i]["embedding"] == pytest.approx(alone, abs=1e-5)
        assert server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0}


def test_half_a_head_is_not_waited_for_and_connections_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.serve.server.HEAD_SECONDS", 0.5)
    with serving(build(), max_connections=3) as (_, client):
        place = ("127.0.0.1", client.base_url.port)
        assert client.get("/health").status_code == 200  # holds a connection
        silent, half = socket.create_connection(place), socket.create_connection(place)
        half.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        with socket.create_connection(place, timeout=10) as fourth:
            told = b"".join(iter(lambda: fourth.recv(4096), b""))
        assert told.startswith(b"HTTP/1.1 503")
        assert b"3 connections are open" in told
        for one in (silent, half):  # closed by the server
            one.settimeout(10)
            assert one.recv(100) == b""
            one.close()
        with socket.create_connection(place, timeout=10) as again:  # a second request on the same connection
            again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert again.recv(4096).startswith(b"HTTP/1.1 200")
            again.sendall(b"GET /hea")
            begun = time.monotonic()
            while again.recv(4096):
                pass
            assert time.monotonic() - begun < 4  # before the five seconds that uvicorn waits for a next request
        time.sleep(0.6)
        text_of(client, "x", 3)


def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.serve.server.HEAD_SECONDS", 0.2)
    with serving(build()) as (_, client), socket.create_connection(("127.0.0.1", client.base_url.port)) as slow:
        slow.settimeout(10)
        body = b'{"model": "small", "prompt": "x", "max_tokens": 1}'
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:9])
        time.sleep(0.5)
        slow.sendall(body[9:])
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")


def test_nothing_is_written_to_clients_that_left(caplog: pytest.LogCaptureFixture) -> None:
    asked = {"model": "small", "prompt": "a", "max_tokens": 3000, "temperature": 0.01, "stream": True}
    with serving(build(), rows=16, max_new_tokens=3000) as (server, client):
        for _ in range(20):
            with client.stream("POST", "/v1/completions", json=asked | {"n": 16}) as response:
                assert next(response.iter_lines()).startswith("data: ")
        wait_until(lambda: server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0})
    assert not [record for record in caplog.records if "socket.send()" in record.getMessage()]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(stream: bool) -> None:
    model = build()
    endless = {"model": "small", "prompt": "a", "max_tokens": 100_000, "temperature": 0.01, "stream": stream}
    with serving(model, rows=1, max_new_tokens=100_000) as (server, client):
        if stream:
            with client.stream("POST", "/v1/completions", json=endless) as response:
                assert next(response.iter_lines()).startswith("data: ")
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=endless, timeout=0.5)
        wait_until(lambda: server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0})
        assert server.metrics.ended._values[(("reason", "cancelled"),)] == 1
        assert text_of(client, "a", 9, seed=1) == written(model, "a", 9, seed=1)


def test_request_ids_and_metrics() -> None:
    with serving(build()) as (_, client):
        assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert client.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req-")
        complete(client, "Hello", 5, seed=1)
        client.get("/nothing")
        text = client.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    assert found['statewise_requests_total{method="POST",path="/v1/completions",status="200"}'] == 1
    assert found['statewise_requests_total{method="GET",path="other",status="404"}'] == 1
    assert found["statewise_prompt_tokens_read_total"] == 6
    assert found["statewise_tokens_written_total"] >= 1
    assert found["statewise_first_token_seconds_count"] == 1
    assert found["process_resident_memory_bytes"] >= 0
    assert text.endswith("\n")


def test_metrics_are_in_prometheus_form() -> None:
    counter = Counter("n_total", "about")
    counter.add(2**40, path='a"b\\\n')
    assert list(counter.lines())[-1] == f'n_total{{path="a\\"b\\\\\\n"}} {2**40}'
    histogram = Histogram("h", "about", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9):
        histogram.observe(value)
    assert [line.split(" ")[-1] for line in histogram.lines()][2:] == ["2", "3", "4", "12.000000", "4"]


def test_two_hundred_requests_of_sixteen_clients() -> None:
    """Some are cut off, some are wrong, all answers are right, and nothing is left behind."""
    model = build("hybrid")
    prompts = ["p" * (1 + 7 * (i % 23)) + f" {i}" for i in range(40)]
    want = {i: written(model, prompts[i % 40], 8 + i % 20, seed=i) for i in range(200) if i % 5 not in (1, 2)}
    limit = 3 << 20
    wrong: list[Any] = []

    with serving(model, rows=6, max_waiting=200, state_bytes=limit, prefill_piece=32) as (server, client):

        def ask(i: int) -> None:
            asked = {"model": "small", "prompt": prompts[i % 40], "max_tokens": 8 + i % 20, "seed": i}
            if i % 5 == 1:
                response = client.post("/v1/completions", json=asked | {"temperature": "x"})
                if response.status_code != 400:
                    wrong.append((i, response.text))
            elif i % 5 == 2:
                with client.stream("POST", "/v1/completions", json=asked | {"stream": True}) as response:
                    for _, _line in zip(range(3), response.iter_lines()):
                        pass
            else:
                got = complete(client, asked["prompt"], 8 + i % 20, seed=i)["choices"][0]["text"]
                if got != want[i]:
                    wrong.append((i, got))

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(200)))
        assert not wrong
        wait_until(lambda: server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0})
        assert server.states.n_bytes <= limit
        assert len(server.engine._free) == 6
        assert threading.active_count() < 60
        begun = time.monotonic()
        text_of(client, "x", 3)
        assert time.monotonic() - begun < 5
