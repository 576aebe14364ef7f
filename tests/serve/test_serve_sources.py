"""What can be served: checkpoints of ours, published folders, GGUF, and models whose prompts begin in their own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_models import publish
from served_models import complete, serving

import statewise as sw
from statewise.cli.model_folder import open_model

QUESTION = [{"role": "user", "content": "What is a state?"}]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One chat model in three forms."""
    folder = tmp_path_factory.mktemp("sources")
    publish(folder / "published", "chatml", "mamba", seed=1)
    model, tokenizer = sw.load(folder / "published"), sw.open_tokenizer(folder / "published")
    sw.save_as(model, folder / "file.gguf", "gguf", tokenizer=tokenizer)
    sw.save(model, folder / "ours", tokenizer=tokenizer)
    return {name: folder / name for name in ("published", "file.gguf", "ours")}


@pytest.mark.parametrize("name", ["published", "file.gguf", "ours"])
def test_each_answers_as_chat_and_as_generate(name: str, sources: dict[str, Path]) -> None:
    opened = open_model(sources[name])
    model, tokenizer = opened.language_model, opened.tokenizer
    want = "".join(sw.Chat(model, tokenizer, max_new_tokens=12, temperature=0).say(QUESTION[0]["content"]))
    stream = sw.generate(
        model, opened.prompts(["def main("]), max_new_tokens=12, seed=3, tokenizer=tokenizer, temperature=0.8
    )
    text = "".join(token.text[0] for token in stream if token.text is not None)
    with serving(model, tokenizer, prompts=opened.prompts) as (_, client):
        asked: dict[str, Any] = {"model": "small", "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"] == want
        assert complete(client, "def main(", 12, seed=3, temperature=0.8)["choices"][0]["text"] == text


def test_a_state_of_a_conversation(sources: dict[str, Path]) -> None:
    opened = open_model(sources["ours"])
    with serving(opened.language_model, opened.tokenizer) as (_, client):
        system = [{"role": "system", "content": "You answer in one word, and never twice the same. " * 4}]
        made = client.post("/v1/states", json={"id": "persona", "messages": system}).raise_for_status().json()
        asked: dict[str, Any] = {"model": "small", "messages": system + QUESTION, "max_tokens": 5}
        usage = client.post("/v1/chat/completions", json=asked).raise_for_status().json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == made["tokens"]
        assert client.post("/v1/chat/completions", json=asked | {"save_state": "after"}).status_code == 200
        assert client.get("/v1/states/after").json()["tokens"] >= usage["prompt_tokens"]
