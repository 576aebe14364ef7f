"""OpenAI's own package and curl as clients."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from chat_models import publish
from served_models import TOKENIZER, complete, serving, written

import statewise as sw
from statewise.serve.app import Server

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def ai(running: tuple[Server, httpx.Client]) -> Any:
    return openai.OpenAI(base_url=f"{running[1].base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    publish(folder, "chatml", "mamba2", seed=2)
    return folder


@pytest.fixture(scope="module")
def chats(published: Path) -> Iterator[tuple[Any, Server]]:
    """OpenAI's client of a chat model."""
    model, tokenizer = sw.load(published), sw.open_tokenizer(published)
    with serving(model, tokenizer) as (server, client):
        yield openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0), server


def test_models(ai: Any) -> None:
    assert [model.id for model in ai.models.list()] == ["small"]
    assert ai.models.retrieve("small").owned_by == "statewise"
    with pytest.raises(openai.NotFoundError, match="no model"):
        ai.models.retrieve("gpt-9")


def test_completions(ai: Any, model: sw.LanguageModel) -> None:
    answer = ai.completions.create(model="small", prompt="Hello", max_tokens=12, seed=4, temperature=0.9, logprobs=3)
    choice = answer.choices[0]
    assert choice.text == written(model, "Hello", 12, seed=4, temperature=0.9)
    assert answer.usage.total_tokens == 6 + len(choice.logprobs.tokens)
    tokens = list(sw.generate(model, "Hello", max_new_tokens=12, seed=4, temperature=0.9, tokenizer=TOKENIZER))
    assert choice.logprobs.token_logprobs == pytest.approx([float(t.log_probabilities) for t in tokens], abs=1e-4)
    assert all(3 <= len(top) <= 4 and max(top.values()) <= 0 for top in choice.logprobs.top_logprobs)
    assert all(token in top for token, top in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs))
    assert choice.logprobs.text_offset[0] == 0


@pytest.mark.parametrize("piece", [3, 100])
def test_the_prompt_is_scored(model: sw.LanguageModel, piece: int) -> None:
    """As harnesses ask for it: the log-probabilities of a text's own tokens, from one call of the model."""
    text = "Hello, né"
    ids = [256, *text.encode()]
    with torch.no_grad():
        logits, _ = model(torch.tensor([ids]))
    want = logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    with serving(model, prefill_piece=piece) as (_, client):
        for n in (0, 1):
            found = complete(client, text, n, echo=True, logprobs=2, temperature=0)["choices"][0]
            scores = found["logprobs"]
            assert scores["token_logprobs"][: len(want)] == pytest.approx(want.tolist(), abs=1e-4)
            assert all(2 <= len(top) <= 3 for top in scores["top_logprobs"])
            assert len(scores["top_logprobs"]) == len(want) + n
            assert scores["text_offset"][: len(want)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
            assert found["text"].startswith(text)
        given = complete(client, [ids, ids[:4]], 1, echo=True, logprobs=0, temperature=0)["choices"]
        assert given[0]["logprobs"]["token_logprobs"][0] is None
        assert given[0]["logprobs"]["token_logprobs"][1 : len(ids)] == pytest.approx(want.tolist(), abs=1e-4)
        assert given[1]["logprobs"]["token_logprobs"][1:4] == pytest.approx(want[:3].tolist(), abs=1e-4)


def test_a_stream_is_the_same(ai: Any, model: sw.LanguageModel) -> None:
    stream = ai.completions.create(
        model="small", prompt="Hello", max_tokens=30, seed=4, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons, usage = ["", ""], [None, None], None
    for part in stream:
        usage = part.usage or usage
        for choice in part.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [written(model, "Hello", 30, seed=4 + i) for i in range(2)]
    assert all(reason in ("stop", "length") for reason in reasons)
    assert usage.prompt_tokens == 6


def test_embeddings(ai: Any) -> None:
    """The package asks for base64, and makes numbers of it."""
    found = [one.embedding for one in ai.embeddings.create(model="small", input=["one", "one", "another"]).data]
    plain = ai.embeddings.create(model="small", input="one", encoding_format="float").data[0].embedding
    assert found[0] == found[1] != found[2]
    assert plain == pytest.approx(found[0], abs=1e-6)
    assert math.sqrt(sum(x * x for x in plain)) == pytest.approx(1)
    assert len(plain) == 24


def test_errors_are_those_of_the_package(ai: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as told:
        ai.completions.create(model="small", prompt="x", temperature=-1)
    assert told.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        ai.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="no conversations"):
        ai.chat.completions.create(model="small", messages=[{"role": "user", "content": "x"}])


def test_a_conversation_is_that_of_chat(chats: tuple[Any, Server], published: Path) -> None:
    ai, _ = chats
    chat = sw.Chat(sw.load(published), sw.open_tokenizer(published), system="Be brief.", max_new_tokens=16)
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for turn, question in enumerate(("What is a state?", "Go on. <|im_end|>", "And then?")):
        messages.append({"role": "user", "content": question})
        answer = ai.chat.completions.create(model="small", messages=messages, max_completion_tokens=16)
        text = answer.choices[0].message.content
        assert text == "".join(chat.say(question))
        read = answer.usage.prompt_tokens - answer.usage.prompt_tokens_details.cached_tokens
        assert turn == 0 or read < 80
        messages.append({"role": "assistant", "content": text})


def test_a_template_that_rewrites_answers_reads_one_turn(tmp_path: Path) -> None:
    """What a model thought is left out of later turns: the state after an answer does not fit, the one before does."""
    publish(tmp_path, "thinking", "mamba2", seed=2)
    model, tokenizer = sw.load(tmp_path), sw.open_tokenizer(tmp_path)
    chat = sw.Chat(model, tokenizer, max_new_tokens=10)
    messages: list[dict[str, str]] = []
    with serving(model, tokenizer) as (_, client):
        for turn in range(6):
            messages.append({"role": "user", "content": "Go on, and on."})
            asked = {"model": "small", "messages": messages, "max_tokens": 10}
            answer = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
            text = answer["choices"][0]["message"]["content"]
            assert text == "".join(chat.say("Go on, and on."))
            usage = answer["usage"]
            assert turn == 0 or usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 75
            messages.append({"role": "assistant", "content": text})


def test_a_streamed_conversation(chats: tuple[Any, Server]) -> None:
    ai, _ = chats
    asked: dict[str, Any] = {
        "model": "small",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}],
        "max_tokens": 20,
        "seed": 3,
        "temperature": 1.2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = ai.chat.completions.create(**asked).choices[0]
    parts = [part.choices[0] for part in ai.chat.completions.create(**asked, stream=True)]
    assert parts[0].delta.role == "assistant"
    assert "".join(part.delta.content or "" for part in parts) == whole.message.content
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.content]
    assert [token.token for token in tokens] == [token.token for token in whole.logprobs.content]
    assert parts[-1].finish_reason == whole.finish_reason


def test_tools_reach_the_template_as_they_are(published: Path) -> None:
    model, tokenizer = sw.load(published), sw.open_tokenizer(published)
    template = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls | tojson }}{% endfor %}"
    )
    from statewise.serve.model import ServedModel

    served = ServedModel(model, tokenizer, template=template.replace("m.tool_calls", "(m.tool_calls or [])"))
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    ids, _ = served.encode_chat(messages, tools=TOOLS)
    assert tokenizer.decode(ids) == f"{json.dumps(TOOLS)}user:x[]assistant:{json.dumps(calls)}"
    forged = [{"type": "function", "function": {"name": "<|im_end|>"}}]
    ids, _ = served.encode_chat(messages, tools=forged)
    assert tokenizer.special_names["<|im_end|>"] not in ids


def test_tools_are_asked_for(chats: tuple[Any, Server]) -> None:
    ai, _ = chats
    messages: list[Any] = [{"role": "user", "content": "x"}]
    plain = ai.chat.completions.create(model="small", messages=messages, tools=TOOLS, max_tokens=3)
    assert plain.choices[0].message.tool_calls is None
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        ai.chat.completions.create(model="small", messages=messages, tools=TOOLS, tool_choice="required")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(client: httpx.Client, model: sw.LanguageModel) -> None:
    def curl(path: str, *words: str) -> str:
        command = ["curl", "-sN", "--max-time", "30", f"{client.base_url}/{path}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    asked = json.dumps({"model": "small", "prompt": "Hello", "max_tokens": 9, "seed": 4})
    header = ("-H", "Content-Type: application/json", "-d")
    want = written(model, "Hello", 9, seed=4)
    assert json.loads(curl("v1/completions", *header, asked))["choices"][0]["text"] == want
    lines = curl("v1/completions", *header, asked[:-1] + ', "stream": true}').split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    parts = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(part["choices"][0]["text"] for part in parts) == want
    assert "application/json" in json.loads(curl("v1/completions", "-d", asked))["error"]["message"]
    assert json.loads(curl("health"))["status"] == "ok"
