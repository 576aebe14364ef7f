"""What clients ask for: OpenAI's requests, checked, as jobs for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from statewise.errors import ConfigError, excerpt
from statewise.generation import Sampling
from statewise.serve.errors import RequestError
from statewise.serve.fields import Fields
from statewise.serve.options import ServeConfig

MOST_STOPS, MOST_TOP, LONGEST_STOP = 16, 20, 1024
MOST_INPUTS = 2048  # of a request for embeddings, as many as OpenAI takes
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Prompt = str | list[int]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How an answer is to be written, and how it is to be sent."""

    sampling: Sampling
    max_new_tokens: int
    seed: int
    n: int = 1
    best_of: int = 1  # sequences that are written of each prompt, of which the n best are answered
    stop: tuple[str, ...] = ()
    n_top: int | None = None  # None: no log-probabilities
    stream: bool = False
    stream_usage: bool = False
    save_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """POST /v1/completions"""

    wanted: Wanted
    prompts: tuple[Prompt, ...]
    echo: bool = False
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """POST /v1/chat/completions. variables: what the template gets besides the messages"""

    wanted: Wanted
    messages: tuple[dict[str, Any], ...]
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """POST /v1/embeddings"""

    prompts: tuple[Prompt, ...]
    in_base64: bool = False


@dataclass(frozen=True, kw_only=True)
class NewState:
    """POST /v1/states: what a prompt or a conversation leaves, behind another state if there is one."""

    name: str
    prompt: Prompt | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    state: str | None = None


def completion(data: Any, model: str, config: ServeConfig) -> Completion:
    """Errors: RequestError for whatever is wrong with it, with the field."""
    fields = Fields(data)
    check_model(fields, model)
    state = fields.text("state")
    n_top = fields.integer("logprobs", 0, MOST_TOP)
    echo = fields.flag("echo")
    fields.refuse("suffix", (), "this model writes from left to right alone; leave it out")
    n_best = fields.integer("best_of", 1, config.rows + config.max_waiting)
    given = fields.take("prompt")
    prompts = ("",) if given is None and state is not None else read_prompts(given, "prompt")
    wanted = _wanted(fields, config, {}, n_top, fields.integer("max_tokens", 0, config.max_new_tokens), 16)
    if n_best is not None:
        if n_best < wanted.n:
            raise RequestError(f"best_of={n_best} is less than n={wanted.n}; use n of at most best_of", param="best_of")
        if n_best > wanted.n and wanted.stream:
            raise RequestError("which is the best is known at the end; best_of needs stream: false", param="best_of")
        wanted = replace(wanted, best_of=n_best)
    if wanted.save_as is not None and len(prompts) * wanted.best_of > 1:
        raise RequestError("save_state needs one prompt and n=1: a state has one name", param="save_state")
    if echo and n_top is not None and (wanted.stream or state is not None):
        raise RequestError("echo with logprobs needs stream: false, and no state", param="echo")
    if wanted.max_new_tokens == 0 and not echo:
        raise RequestError(
            "max_tokens=0 writes nothing; use at least 1, or POST /v1/states to read", param="max_tokens"
        )
    fields.done()
    return Completion(wanted=wanted, prompts=prompts, echo=echo, state=state)


def conversation(data: Any, model: str, config: ServeConfig, sampling: dict[str, Any]) -> Conversation:
    """sampling: as published, where the request does not say otherwise

    Errors:  RequestError as :func:`completion`.
    """
    fields = Fields(data)
    check_model(fields, model)
    messages = read_messages(fields.take("messages"))
    variables = _variables(fields)
    n_top = fields.integer("top_logprobs", 0, MOST_TOP)
    if not fields.flag("logprobs"):
        if n_top is not None:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    elif n_top is None:
        n_top = 0
    longest = fields.integer("max_tokens", 1, config.max_new_tokens)
    longest = fields.integer("max_completion_tokens", 1, config.max_new_tokens) or longest
    fields.refuse("functions", (), "use tools")
    fields.refuse(
        "response_format", ({"type": "text"},), 'the server does not check what is written; use {"type": "text"}'
    )
    fields.refuse("modalities", (["text"],), 'use ["text"]')
    wanted = _wanted(fields, config, sampling, n_top, longest, config.max_new_tokens)
    if wanted.save_as is not None and wanted.n > 1:
        raise RequestError("save_state needs n=1: a state has one name", param="save_state")
    fields.done()
    return Conversation(wanted=wanted, messages=messages, variables=variables)


def embedding(data: Any, model: str, width: int) -> Embedding:
    """Errors: RequestError as :func:`completion`."""
    fields = Fields(data)
    check_model(fields, model)
    prompts = read_prompts(fields.take("input"), "input")
    if len(prompts) > MOST_INPUTS:
        raise RequestError(f"input has {len(prompts):,} entries; send up to {MOST_INPUTS:,} at once", param="input")
    form = fields.text("encoding_format")
    if form not in (None, "float", "base64"):
        raise fields.wrong("encoding_format", form, 'use "float" or "base64"')
    fields.refuse("dimensions", (width,), f"this model's vectors have {width}")
    fields.done()
    return Embedding(prompts=prompts, in_base64=form == "base64")


def new_state(data: Any, model: str) -> NewState:
    """Errors: RequestError as :func:`completion`."""
    fields = Fields(data)
    if fields.take("model") is not None:
        check_model(fields, model)
    name, state = fields.text("id"), fields.text("state")
    if name is None:
        raise RequestError("id is missing; give the state a name", param="id")
    prompt, messages = fields.take("prompt"), fields.take("messages")
    variables = _variables(fields)
    fields.done()
    if (prompt is None) == (messages is None):
        raise RequestError("give a prompt or messages, and not both", param="prompt")
    if messages is not None:
        if state is not None:
            raise RequestError("messages begin a conversation; leave state out, or give a prompt", param="state")
        return NewState(name=name, messages=read_messages(messages), variables=variables)
    prompts = read_prompts(prompt, "prompt")
    if len(prompts) != 1:
        raise RequestError("a state is of one prompt; send one request for each", param="prompt")
    return NewState(name=name, prompt=prompts[0], state=state)


def check_model(fields: Fields, model: str) -> None:
    """Errors: RequestError, 404 for another model than the one that is served."""
    given = fields.text("model")
    if given is None:
        raise RequestError(f"model is missing; this server has {model!r}", param="model")
    if given != model:
        raise RequestError(
            f"there is no model {excerpt(given)} here; use {model!r}", status=404, param="model", code="model_not_found"
        )


def read_prompts(value: Any, name: str) -> tuple[Prompt, ...]:
    """A text, ids, or a list of either.

    >>> read_prompts([1, 2], "prompt"), read_prompts(["a", "b"], "prompt")
    (([1, 2],), ('a', 'b'))
    """
    expected = "a string, a list of strings, a list of token ids, or a list of such lists"
    if isinstance(value, str):
        return (value,)
    if value is None:
        raise RequestError(f"{name} is missing; expected {expected}", param=name)
    if isinstance(value, list) and value:
        if _all_ids(value):
            return (value,)
        if all(isinstance(item, str) or (isinstance(item, list) and _all_ids(item)) for item in value):
            return tuple(value)
    raise RequestError(f"{name}={excerpt(value)} cannot be read; expected {expected}", param=name)


def read_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """Messages with a role that is known and content that is text, or parts of text, which are joined. What else they
    have, as calls of tools, goes to the template as it is."""
    if not isinstance(value, list) or not value:
        raise RequestError('messages must be a list such as [{"role": "user", "content": "Hello"}]', param="messages")
    found = []
    for i, message in enumerate(value):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise RequestError(f"{where} is not an object with role and content", param=where)
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(f"{where}.role={excerpt(role)} is unknown; use one of {', '.join(ROLES)}", param=where)
        content = message.get("content")
        if isinstance(content, list):
            content = _joined(content, where)
        if content is None and role == "assistant" and message.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            raise RequestError(f"{where}.content must be a string, or a list of parts of text", param=where)
        found.append({**message, "role": role, "content": content})
    return tuple(found)


def _joined(parts: Sequence[Any], where: str) -> str:
    for i, part in enumerate(parts):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise RequestError(
                f"{where}.content[{i}] is not a part of text, which is all that this model reads", param=where
            )
    return "".join(part["text"] for part in parts)


def _variables(fields: Fields) -> dict[str, Any]:
    """Tools, as the template gets them."""
    tools = fields.take("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise fields.wrong("tools", tools, "expected a list of objects")
    choice = fields.take("tool_choice")
    if choice not in (None, "auto", "none"):
        raise fields.wrong("tool_choice", choice, 'the model chooses by itself; use "auto" or "none"')
    return {"tools": tools} if tools and choice != "none" else {}


def _wanted(
    fields: Fields, config: ServeConfig, sampling: dict[str, Any], n_top: int | None, longest: int | None, default: int
) -> Wanted:
    given: dict[str, Any] = {
        "temperature": fields.number("temperature"),
        "top_k": fields.integer("top_k", 1, 1 << 31),
        "top_p": fields.number("top_p"),
        "min_p": fields.number("min_p"),
        "repetition_penalty": fields.number("repetition_penalty"),
    }
    try:
        drawn = Sampling(**{**sampling, **{name: value for name, value in given.items() if value is not None}})
    except ConfigError as error:
        text = str(error).removeprefix("Sampling.")
        raise RequestError(text, param=text.split("=")[0]) from error
    for name in ("presence_penalty", "frequency_penalty"):
        fields.refuse(name, (0, 0.0), "use repetition_penalty")
    fields.refuse("logit_bias", ({},), "it is not supported; leave it out")
    stream = fields.flag("stream")
    options = fields.take("stream_options")
    usage = False
    if options is not None:
        if not stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        inner = Fields(options, where="stream_options")
        usage = inner.flag("include_usage")
        inner.flag("include_obfuscation")  # padding against listeners, which this server does not add
        inner.done()
    seed = fields.integer("seed", 0, 2**63 - 1)
    room = config.rows + config.max_waiting
    n = fields.integer("n", 1, room) or 1
    return Wanted(
        sampling=drawn,
        max_new_tokens=default if longest is None else longest,
        seed=torch.Generator().seed() >> 1 if seed is None else seed,
        n=n,
        best_of=n,
        stop=_stops(fields),
        n_top=n_top,
        stream=stream,
        stream_usage=usage,
        save_as=fields.text("save_state"),
    )


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    fits = isinstance(stops, list) and all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in stops)
    if not fits or len(stops) > MOST_STOPS:
        expected = f"expected up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
        raise fields.wrong("stop", value, expected)
    return tuple(stops)


def _all_ids(value: Sequence[Any]) -> bool:
    return bool(value) and all(type(item) is int for item in value)
