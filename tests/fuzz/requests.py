"""Requests to the server with mutated fields: each becomes a job, or a refusal of one line with a status of 4xx."""

from __future__ import annotations

import json
from typing import Any

from fuzz.command_line import VALUES
from fuzz.draw import Draw, Finding
from statewise.configuration import parse_json
from statewise.errors import ConfigError
from statewise.serve import ServeConfig, requests
from statewise.serve.errors import RequestError

LONGEST = 800  # characters of a refusal, which may list all fields
CONFIG = ServeConfig()
MESSAGE = {"role": "user", "content": "x"}
OURS: tuple[Any, ...] = (
    *VALUES, MESSAGE, [MESSAGE], [{"role": "x"}], [{**MESSAGE, "content": [{"type": "text", "text": "x"}]}], ["a", "b"],
    [[1], [2]], [True], [1, "x"], {"include_usage": True}, {"type": "text"}, "base64", "small", "a" * 64, "auto",
)  # fmt: skip
FIELDS: dict[str, tuple[str, ...]] = {
    "completion": (
        "prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "n", "best_of", "seed",
        "stop", "stream", "stream_options", "logprobs", "echo", "suffix", "state", "save_state", "logit_bias", "user",
    ),
    "conversation": (
        "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "seed", "stop", "stream",
        "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "functions", "modalities", "save_state",
    ),
    "embedding": ("input", "encoding_format", "dimensions", "user"),
    "state": ("id", "prompt", "messages", "state", "tools"),
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "x"},
    "conversation": {"messages": [MESSAGE]},
    "embedding": {"input": "x"},
    "state": {"id": "x", "prompt": "x"},
}


def check(draw: Draw) -> None:
    """One request."""
    kind = draw.choice(tuple(FIELDS), "kind")
    names = FIELDS[kind]
    asked: dict[str, Any] = {"model": "small", **NEEDED[kind]}
    for name in draw.random.sample(names, min(len(names), draw.integer(0, 4))):
        asked[name] = draw.choice(OURS)
    if draw.chance(0.1):
        asked[draw.choice(("x", "", "Prompt", "\udc80", "model", "x" * 3000))] = draw.choice(OURS)
    draw.note("asked", asked)
    try:
        read(kind, parse_json(json.dumps(asked), "the body"))
    except ConfigError:
        return  # NaN, and numbers of too many digits: the body is refused
    except RequestError as error:
        told = error.body()["error"]["message"]
        if not 400 <= error.status < 500 or "\n" in told or len(told) > LONGEST or not told.isprintable():
            raise Finding(f"a refusal of {error.status} with {len(told)} characters: {told[:200]!r}") from error


def read(kind: str, data: Any) -> object:
    if kind == "completion":
        return requests.completion(data, "small", CONFIG)
    if kind == "conversation":
        return requests.conversation(data, "small", CONFIG, {})
    return requests.embedding(data, "small", 64) if kind == "embedding" else requests.new_state(data, "small")
