"""Every bad request gets a clear 4xx in OpenAI's form, and the server goes on."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from typing import Any

import httpx
import pytest
from served_models import build, serving, text_of, written

import statewise as sw

GOOD: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "x"}]


def refusal(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert len(error["message"]) < 600
    found: dict[str, Any] = error
    return found


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": []}, "prompt", "list of"),
        ({"prompt": {"a": 1}}, "prompt", "list of"),
        ({"prompt": [1, "a"]}, "prompt", "list of"),
        ({"prompt": [1.5]}, "prompt", "list of"),
        ({"prompt": [[]]}, "prompt", "list of"),
        ({"prompt": [True]}, "prompt", "list of"),
        ({"prompt": [257]}, "prompt", "vocabulary"),
        ({"prompt": [10**30]}, "prompt", "vocabulary"),
        ({"prompt": [[1], [300]]}, "prompt", "row 1 of prompt"),
        ({"prompt": "\ud800"}, "prompt", "Unicode"),
        ({"model": "other"}, "model", "no model"),
        ({"model": None}, "model", "missing"),
        ({"model": 3}, "model", "string"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens=0"),
        ({"max_tokens": -1}, "max_tokens", "range"),
        ({"max_tokens": 10**400}, "max_tokens", "range"),
        ({"max_tokens": "3"}, "max_tokens", "integer"),
        ({"max_tokens": 2.0}, "max_tokens", "integer"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"temperature": -0.1}, "temperature", "temperature"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": 10**400}, "temperature", "large"),
        ({"top_p": 0}, "top_p", "top_p"),
        ({"top_p": 1.1}, "top_p", "top_p"),
        ({"top_k": 0}, "top_k", "top_k"),
        ({"min_p": 2}, "min_p", "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty"),
        ({"presence_penalty": 0.5}, "presence_penalty", "repetition_penalty"),
        ({"logit_bias": {"3": 1}}, "logit_bias", "not supported"),
        ({"seed": -1}, "seed", "2**63"),
        ({"seed": 2**63}, "seed", "2**63"),
        ({"n": 0}, "n", "range"),
        ({"n": 1000}, "n", "range"),
        ({"best_of": 0}, "best_of", "range"),
        ({"n": 3, "best_of": 2}, "best_of", "less than n"),
        ({"best_of": 3, "stream": True}, "best_of", "stream: false"),
        ({"save_state": "x", "best_of": 2}, "save_state", "one name"),
        ({"stop": ""}, "stop", "texts"),
        ({"stop": False}, "stop", "texts"),
        ({"stop": 0}, "stop", "texts"),
        ({"stop": {}}, "stop", "texts"),
        ({"stop": ["a"] * 17}, "stop", "texts"),
        ({"stop": [1]}, "stop", "texts"),
        ({"stop": "a" * 2000}, "stop", "texts"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {}}, "stream_options", "stream"),
        ({"stream": True, "stream_options": {"x": 1}}, "x", "no field"),
        ({"logprobs": 21}, "logprobs", "range"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"logprobs": 1, "echo": True, "stream": True}, "echo", "stream"),
        ({"suffix": "y"}, "suffix", "left to right"),
        ({"state": "none"}, None, "no state"),
        ({"save_state": "../x"}, "save_state", "not a name"),
        ({"save_state": "x", "n": 2}, "save_state", "one name"),
        ({"tempratur": 1}, "tempratur", "temperature"),
        ({"\ud800": 1}, "\\ud800", "no field"),
        ({"stream": True, "stream_options": {"\udfff": 1}}, "\\udfff", "no field"),
        ({"prompt": "x" * 3000}, "prompt", "tokens"),
    ],
)
def test_completions(client: httpx.Client, change: dict[str, Any], param: str | None, words: str) -> None:
    response = client.post("/v1/completions", content=json.dumps(GOOD | change), headers=JSON)
    if change == {"prompt": "x" * 3000}:  # which this server reads; another one is asked below
        assert response.status_code == 200
        return
    error = refusal(response)
    assert error["param"] == param
    assert words in error["message"]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": None}, "list"),
        ({"messages": []}, "list"),
        ({"messages": "Hello"}, "list"),
        ({"messages": ["Hello"]}, "object"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": {}, "content": "x"}]}, "role"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "part of text"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": []}, "tools"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({}, "no conversations"),
    ],
)
def test_chats(client: httpx.Client, change: dict[str, Any], words: str) -> None:
    asked = {"model": "small", "messages": MESSAGES} | change
    assert words in refusal(client.post("/v1/chat/completions", json=asked))["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"model": "small", "model": "small"}', "twice"),
        (b'{"model": "small", "prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"model": "small", "prompt": "x", "temperature": 1e999}', "large"),
        (b'{"model": "small", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", "more than 4,300 digits"),
    ],
)
def test_bodies(client: httpx.Client, body: bytes, words: str) -> None:
    for path in ("completions", "chat/completions", "embeddings", "states"):
        error = refusal(client.post(f"/v1/{path}", content=body, headers=JSON))
        assert words in error["message"] or path != "completions"


def test_embeddings_and_states(client: httpx.Client) -> None:
    for path, change, words in (
        ("embeddings", {"input": None}, "missing"),
        ("embeddings", {"input": "x", "encoding_format": "hex"}, "base64"),
        ("embeddings", {"input": "x", "dimensions": 5}, "24"),
        ("embeddings", {"input": ["x"] * 2049}, "2,048"),
        ("embeddings", {"input": [[1], [2], [300]]}, "row 2 of input"),
        ("states", {"prompt": "x"}, "id"),
        ("states", {"id": "a"}, "prompt or messages"),
        ("states", {"id": "a", "prompt": "x", "messages": MESSAGES}, "not both"),
        ("states", {"id": "a", "prompt": ["x", "y"]}, "one prompt"),
        ("states", {"id": "a b", "prompt": "x"}, "not a name"),
        ("states/none/branch", {"id": "b"}, "no field 'model'"),
    ):
        assert words in refusal(client.post(f"/v1/{path}", json={"model": "small"} | change))["message"]
    assert client.post("/v1/states/none/branch", json={"id": "b"}).status_code == 404
    half = json.dumps({"id": "b", "\ud800": 1})
    assert refusal(client.post("/v1/states/none/branch", content=half, headers=JSON))["param"] == "\\ud800"


def test_places(client: httpx.Client) -> None:
    assert client.get("/").status_code == client.get("/v1/models/x").status_code == 404
    assert refusal(client.get("/v1/completions"))["message"].startswith("GET is not")
    assert client.get("/v1/completions").headers["allow"] == "POST"
    assert refusal(client.post("/v1/completions", content=b"{}"))["message"].startswith("Content-Type")
    assert refusal(client.get("/health", headers={"host": "evil.example"}))["message"].startswith("the Host")
    assert client.get("/health", headers={"host": "localhost"}).status_code == 200


def values(random_: random.Random) -> Any:
    """What nobody should send."""
    return random_.choice(
        [None, True, -1, 0, 1, 3, 2**31, 2**63, -(2**64), 1e-300, 0.5, 1e308, "", "x", "\x00", "é\n", "9", [], {}, [[]]]
        + [["x"], [1, 2], [None], {"a": {"b": []}}, ["x", 1], "y" * 5000, [[1], [2]], [300], [-1], {"role": "user"}]
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_random_request_brings_it_down(client: httpx.Client, model: sw.LanguageModel, seed: int) -> None:
    """Each is answered or refused, and an answer that is asked for at the end is right."""
    random_ = random.Random(seed)
    names = [*GOOD, "n", "stop", "stream", "logprobs", "echo", "temperature", "top_k", "top_p", "seed", "state"]
    names += ["messages", "tools", "input", "stream_options", "save_state", "id", "dimensions", "metadata", "min_p"]
    for _ in range(100):
        path = random_.choice(["completions", "chat/completions", "embeddings", "states"])
        asked = {name: values(random_) for name in random_.sample(names, random_.randint(0, 4))}
        asked = {**GOOD, "messages": MESSAGES, "input": "x", "id": "x", **asked}
        if random_.random() < 0.8:  # otherwise there is always an unknown field
            fits = {"completions": ("messages", "input", "id"), "chat/completions": ("prompt", "input", "id")}
            fits |= {
                "embeddings": ("messages", "prompt", "id", "max_tokens"),
                "states": ("messages", "input", "max_tokens"),
            }
            asked = {name: value for name, value in asked.items() if name not in fits[path]}
        response = client.post(f"/v1/{path}", content=json.dumps(asked), headers=JSON)
        assert response.status_code < 500, (path, asked, response.text)
        if response.status_code >= 400:
            refusal(response)
    for state in client.get("/v1/states").json()["data"]:
        assert client.delete(f"/v1/states/{state['id']}").status_code == 200
    assert text_of(client, "x", 9, seed=1) == written(model, "x", 9, seed=1)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)),
        b"GET /" + b"a" * 100_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 500\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        HEAD.replace(b"POST", b"\x00") + b"\r\n",
        HEAD.replace(b"localhost", b"[::1") + b"\r\n",
    ],
    ids=["bytes", "path", "header", "negative", "half", "chunks", "method", "host"],
)
def test_what_is_not_http(
    client: httpx.Client, model: sw.LanguageModel, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", client.base_url.port)) as raw, contextlib.suppress(OSError):
            raw.sendall(data)
            raw.settimeout(0.05)
            raw.recv(100)
    assert text_of(client, "x", 9, seed=1) == written(model, "x", 9, seed=1)
    assert not [record for record in caplog.records if "failed" in record.getMessage()]


def test_long_contexts() -> None:
    with serving(build(), max_prompt_tokens=50, max_new_tokens=20) as (_, client):
        error = refusal(client.post("/v1/completions", json=GOOD | {"prompt": "x" * 50}))
        assert error["code"] == "context_length_exceeded"
        assert "51 tokens" in error["message"]
        assert refusal(client.post("/v1/completions", json=GOOD | {"max_tokens": 21}))["param"] == "max_tokens"
        assert refusal(client.post("/v1/embeddings", json={"model": "small", "input": "x" * 60}))["code"]
    with serving(build(max_positions=30)) as (_, client):
        text_of(client, "x" * 20, 9)
        error = refusal(client.post("/v1/completions", json=GOOD | {"prompt": "x" * 20, "max_tokens": 10}))
        assert "positions for 30" in error["message"]
