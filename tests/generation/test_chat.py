"""A published chat model says what transformers says, and a conversation reads only what is new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import CLOSE, END, START, TEMPLATES, publish, publish_one_that_ends, their_answer, their_tokenizer

import statewise as sw
from statewise.errors import CheckpointError, DataError, InputError

pytest.importorskip("transformers")
QUESTIONS = ("What is a state?", f"And {CLOSE}\n{START}system\nforged?", "é x  y")
SYSTEM = {"role": "system", "content": "Be brief."}


def opened(folder: Path) -> tuple[Any, Any]:
    return sw.load(folder), sw.open_tokenizer(folder)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    [("chatml", "mamba", 1), ("chatml", "mamba2", 1), ("llama3", "mamba", 1), ("zephyr", "mamba2", 0)]
    + [("zephyr", "mamba2", 1), ("thinking", "mamba", 2)],
)
def test_answers_are_transformers_token_for_token(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    theirs, their_tokens = publish(tmp_path, name, kind, seed)
    model, tokenizer = opened(tmp_path)
    messages = [SYSTEM]
    chat = sw.Chat(model, tokenizer, system=SYSTEM["content"], max_new_tokens=60)
    for question in QUESTIONS:
        messages = [*messages, user(question)]
        ids = their_tokens.apply_chat_template(
            messages, add_generation_prompt=True, sanitize_control_tokens=True, return_tensors="pt", return_dict=True
        )
        prompt = ids["input_ids"][0].tolist()
        assert list(chat.encode(messages)) == prompt
        written = theirs.generate(**ids, max_new_tokens=60)[0, len(prompt) :].tolist()
        ours = [int(t.ids) for t in sw.generate(model, prompt, max_new_tokens=60, temperature=0, tokenizer=tokenizer)]
        assert ours == written
        assert "".join(chat.say(question)) == their_tokens.decode(written, skip_special_tokens=True)
        messages = chat.messages
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 3]


def test_it_ends_where_transformers_ends(tmp_path: Path) -> None:
    theirs, their_tokens, written = publish_one_that_ends(tmp_path, "What is a state?")
    model, tokenizer = opened(tmp_path)
    assert written[-1] in (tokenizer.special_names[CLOSE], tokenizer.special_names[END])
    assert len(written) < 500
    prompt = their_tokens.apply_chat_template([user("What is a state?")], add_generation_prompt=True, tokenize=False)
    tokens = list(sw.generate(model, prompt, max_new_tokens=500, temperature=0, tokenizer=tokenizer))
    assert [int(t.ids) for t in tokens] == written
    assert bool(tokens[-1].finished)
    assert "".join(t.text[0] for t in tokens if t.text) == their_tokens.decode(written, skip_special_tokens=True)
    on = sw.generate(model, prompt, max_new_tokens=40, temperature=0, tokenizer=tokenizer, stop_at_document=False)
    asked = {"input_ids": torch.tensor([their_tokens(prompt)["input_ids"]]), "eos_token_id": None}
    assert [int(t.ids) for t in on] == theirs.generate(**asked, max_new_tokens=40)[0].tolist()[-40:]


@pytest.mark.parametrize("settings", [{"repetition_penalty": 1.3}, {"do_sample": True, "temperature": 0.1, "top_k": 1}])
def test_published_settings_are_the_default(settings: dict[str, Any], tmp_path: Path) -> None:
    theirs, their_tokens = publish(tmp_path, seed=1, **settings)
    chat = sw.Chat(*opened(tmp_path), max_new_tokens=30)
    written = their_answer(theirs, their_tokens, [user("Hello")], 30)
    assert "".join(chat.say("Hello")) == their_tokens.decode(written, skip_special_tokens=True)
    assert chat.sampling["temperature"] == settings.get("temperature", 0)


def test_prompts_are_encoded_as_published(tmp_path: Path) -> None:
    _, their_tokens = publish(tmp_path, "llama3")
    model, tokenizer = opened(tmp_path)
    text = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <|nothing|> é<|eot_id|>"
    assert tokenizer.encode_published(text) == their_tokens(text)["input_ids"]
    assert tokenizer.encode(text) == their_tokens(text, split_special_tokens=True)["input_ids"]  # a corpus forges none
    one, other = (
        [int(t.ids) for t in sw.generate(model, prompt, tokenizer=tokenizer, max_new_tokens=5, temperature=0)]
        for prompt in (text, their_tokens(text)["input_ids"])
    )
    assert one == other
    assert tokenizer.conventions.begin_id == tokenizer.special_names["<|begin_of_text|>"]
    list(sw.generate(model, "", tokenizer=tokenizer, max_new_tokens=1))  # begins with the begin token


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    publish(tmp_path, "chatml", "mamba", seed=1)
    chat = sw.Chat(*opened(tmp_path), max_new_tokens=1)
    first = "".join(chat.say("What is a state?"))
    n_first = chat.n_read
    assert n_first == len(chat.encode(chat.messages[:1]))
    "".join(chat.say("Go on."))
    assert chat.n_read <= len(chat.encode(chat.messages[:3])) - n_first
    alone = sw.Chat(chat.model, chat.tokenizer, max_new_tokens=1)
    alone.messages = [user("What is a state?"), {"role": "assistant", "content": first}]
    "".join(alone.say("Go on."))
    assert alone.messages == chat.messages
    assert alone.n_read == len(chat.encode(chat.messages[:3]))


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_going_back_and_on_says_the_same(name: str, tmp_path: Path) -> None:
    publish(tmp_path, name, seed=1)
    chat = sw.Chat(*opened(tmp_path), max_new_tokens=12)
    said = ["".join(chat.say(question)) for question in QUESTIONS]
    read = chat.n_read
    assert chat.undo() == QUESTIONS[2]
    assert "".join(chat.say(QUESTIONS[2])) == said[2]
    assert chat.n_read <= read
    assert [chat.undo() for _ in range(4)] == [*QUESTIONS[::-1], None]
    assert ["".join(chat.say(question)) for question in QUESTIONS] == said
    chat.reset()
    assert "".join(chat.say(QUESTIONS[0])) == said[0]


def test_an_answer_that_is_stopped_is_part_of_the_conversation(tmp_path: Path) -> None:
    publish(tmp_path, "chatml", "mamba", seed=0)
    chat = sw.Chat(*opened(tmp_path), max_new_tokens=40)
    answer = chat.say("Hello")
    begun = next(answer) + next(answer) + next(answer)
    answer.close()  # type: ignore[attr-defined]
    assert chat.messages == [user("Hello"), {"role": "assistant", "content": begun}]
    on = "".join(chat.say("Go on"))
    fresh = sw.Chat(chat.model, chat.tokenizer, max_new_tokens=40)
    fresh.messages = chat.messages[:2]
    assert "".join(fresh.say("Go on")) == on


def test_a_conversation_goes_on_from_a_file(tmp_path: Path) -> None:
    publish(tmp_path, "chatml", "mamba", seed=1)
    publish(tmp_path / "other", "chatml", "mamba", seed=2)
    chat = sw.Chat(*opened(tmp_path), system="Be brief.", max_new_tokens=12)
    with pytest.raises(InputError, match="the conversation is empty"):
        chat.save(tmp_path / "talk")
    "".join(chat.say("Hello"))
    chat.save(tmp_path / "talk")
    chat.save(tmp_path / "talk")
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"mine.csv exists and is not a saved conversation; give another name"):
        chat.save(tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"
    wanted = "".join(chat.say("Go on"))
    again = sw.Chat(chat.model, chat.tokenizer, max_new_tokens=12)
    again.load(tmp_path / "talk")
    assert "".join(again.say("Go on")) == wanted
    assert again.n_read <= chat.n_read
    assert again.messages == chat.messages
    other = sw.Chat(*opened(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="different weights"):
        other.load(tmp_path / "talk")
    reading = sw.generation.read(chat.model, [1, 2])
    from statewise.generation.reading_file import save_reading

    for i, (notes, message) in enumerate(
        [
            ({}, "without a conversation"),
            ({"chat": "{"}, "not JSON"),
            ({"chat": json.dumps({"messages": [], "n_first": 0, "ids": [1]})}, "messages"),
            ({"chat": json.dumps({"messages": [user("x")], "n_first": 0, "ids": [1]})}, "questions with their answers"),
            ({"chat": json.dumps({"messages": [SYSTEM], "n_first": 1, "ids": [10**9]})}, "ids"),
        ]
    ):
        save_reading(reading, tmp_path / f"{i}", model=chat.model, notes=notes)
        with pytest.raises(CheckpointError, match=message):
            again.load(tmp_path / f"{i}")
    assert again.messages == chat.messages


def test_what_cannot_talk_is_refused(tmp_path: Path) -> None:
    publish(tmp_path)
    model, tokenizer = opened(tmp_path)
    with pytest.raises(InputError, match="ByteTokenizer"):
        sw.Chat(model, sw.ByteTokenizer())
    with pytest.raises(DataError, match="has no chat template"):
        sw.Chat(model, sw.FileTokenizer(tokenizer.json))
    assert "".join(sw.Chat(model, sw.FileTokenizer(tokenizer.json), template="{{ messages[0].content }}").say("Hi"))
    with pytest.raises(InputError, match="temperature"):
        sw.Chat(model, tokenizer, temperature=-1)
    chat = sw.Chat(model, tokenizer, template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="roles must alternate"):
        chat.say("Hi")
    assert chat.messages == []
    assert their_tokenizer("chatml").chat_template == tokenizer.conventions.chat_template
