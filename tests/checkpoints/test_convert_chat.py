"""What a chat model was published with goes with it: into a checkpoint, out of it, and through GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import CLOSE, END, TEMPLATES, publish, their_answer

import statewise as sw
from statewise import checkpoints
from statewise.checkpoints.convert.gguf_conventions import read_files, write_values
from statewise.checkpoints.convert.source import needed_files
from statewise.cli.conversion import convert_model
from statewise.conventions.published import FILES, GENERATION, SPECIAL, TEMPLATE, TOKENIZER, Conventions
from statewise.errors import CheckpointError, DataError

transformers = pytest.importorskip("transformers")
TALK = [{"role": "user", "content": "What is a state?"}]


def files_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def answer(source: Path, n: int = 40) -> str:
    chat = sw.Chat(sw.load(source), sw.open_tokenizer(source), max_new_tokens=n)
    return "".join(chat.say(TALK[0]["content"]))


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_it_comes_back_from_convert_as_it_was(name: str, tmp_path: Path) -> None:
    theirs, their_tokens = publish(tmp_path / "hf", name, "mamba", seed=1, repetition_penalty=1.1)
    convert_model(tmp_path / "hf", tmp_path / "ours")
    convert_model(tmp_path / "ours", tmp_path / "back", to="transformers")
    assert files_in(tmp_path / "hf").keys() >= {GENERATION, TOKENIZER, TEMPLATE}
    assert files_in(tmp_path / "hf") == files_in(tmp_path / "ours") == files_in(tmp_path / "back")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert tokens.chat_template == their_tokens.chat_template
    written = their_answer(theirs, their_tokens, TALK, 40)
    assert their_answer(model, tokens, TALK, 40) == written
    for source in ("hf", "ours", "back"):
        assert answer(tmp_path / source) == their_tokens.decode(written, skip_special_tokens=True)
    sw.save(
        sw.load(tmp_path / "ours"), tmp_path / "ours", tokenizer=sw.open_tokenizer(tmp_path / "ours"), overwrite=True
    )


def test_it_goes_through_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    for name in ("chatml", "llama3", "zephyr"):
        folder = tmp_path / name
        theirs, their_tokens = publish(folder / "hf", name, "mamba2", seed=1)
        convert_model(folder / "hf", folder / "model.gguf", to="gguf")
        tokenizer, before = sw.open_tokenizer(folder / "model.gguf"), sw.open_tokenizer(folder / "hf")
        found, wanted = tokenizer.conventions, before.conventions
        assert found is not None
        assert wanted is not None
        assert found.chat_template == TEMPLATES[name][0]
        assert {*found.end_ids} == {*wanted.end_ids}
        assert (found.begin_id, found.padding_id) == (wanted.begin_id, wanted.padding_id)
        assert {k: v for k, v in wanted.names.items() if v} == found.names
        written = their_answer(theirs, their_tokens, TALK, 20)
        assert answer(folder / "model.gguf", 20) == their_tokens.decode(written, skip_special_tokens=True)
        convert_model(folder / "model.gguf", folder / "ours")
        convert_model(folder / "ours", folder / "again.gguf", to="gguf")
        convert_model(folder / "ours", folder / "back", to="transformers")
        assert files_in(folder / "ours") == files_in(folder / "back")
        from statewise.checkpoints.convert.gguf_file import read_file

        assert read_file(folder / "again.gguf").metadata == read_file(folder / "model.gguf").metadata
        assert answer(folder / "again.gguf", 20) == answer(folder / "model.gguf", 20)


def test_a_begin_token_that_is_added_is_added_by_gguf_too(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    publish(tmp_path / "hf", "llama3")
    data = json.loads((tmp_path / "hf" / "tokenizer.json").read_text("utf-8"))
    begin = data["added_tokens"][3]
    piece = {"SpecialToken": {"id": begin["content"], "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [piece, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {begin["content"]: {k: [begin[v]] for k, v in (("ids", "id"), ("tokens", "content"))}},
    }
    data["post_processor"]["special_tokens"][begin["content"]]["id"] = begin["content"]
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    convert_model(tmp_path / "hf", tmp_path / "model.gguf", to="gguf")
    one, other = sw.open_tokenizer(tmp_path / "hf"), sw.open_tokenizer(tmp_path / "model.gguf")
    assert one.prefix == other.prefix == [begin["id"]]
    assert one.encode_published("Hello") == other.encode_published("Hello")
    wanted = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("Hello")["input_ids"]
    assert one.encode_published("Hello") == wanted


def test_what_config_json_says_counts_where_nothing_else_does(tmp_path: Path) -> None:
    _, tokens = publish(tmp_path)
    (tmp_path / GENERATION).unlink()
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}), "utf-8")
    assert sw.open_tokenizer(tmp_path).conventions.end_ids == (7,)
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}), "utf-8")
    assert sw.open_tokenizer(tmp_path).conventions.end_ids == (tokens.convert_tokens_to_ids(CLOSE),)
    for name in FILES:
        (tmp_path / name).unlink(missing_ok=True)
    tokenizer = sw.open_tokenizer(tmp_path)
    assert tokenizer.conventions is None
    assert tokenizer.document_token == tokens.convert_tokens_to_ids(END)


def test_older_forms_are_read(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / TEMPLATE).unlink()
    data = json.loads((tmp_path / TOKENIZER).read_text("utf-8"))

    def conventions(**changes: Any) -> Any:
        (tmp_path / TOKENIZER).write_text(json.dumps(data | changes), "utf-8")
        return sw.open_tokenizer(tmp_path).conventions

    assert conventions().chat_template is None
    assert conventions(chat_template="{{ 1 }}").chat_template == "{{ 1 }}"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert conventions(chat_template=several).chat_template == "d"
    assert conventions(chat_template=several[:1]).chat_template is None
    (tmp_path / SPECIAL).write_text(json.dumps({"unk_token": {"content": "<unk>", "lstrip": False}}), "utf-8")
    assert conventions(unk_token=None).names["unk_token"] == "<unk>"
    assert conventions(split_special_tokens=True).special_is_text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (GENERATION, "{", "not JSON"),
        (GENERATION, "[]", "does not contain a JSON object"),
        (GENERATION, '{"eos_token_id": 1, "eos_token_id": 2}', "twice"),
        (GENERATION, '{"eos_token_id": -1}', "eos_token_id"),
        (GENERATION, '{"eos_token_id": 100000000000}', "is not a token of the vocabulary"),
        (GENERATION, '{"eos_token_id": "x"}', "eos_token_id"),
        (GENERATION, '{"eos_token_id": true}', "eos_token_id"),
        (GENERATION, f'{{"eos_token_id": {[1] * 5000}}}', "5,000 end tokens"),
        (GENERATION, '{"temperature": "hot"}', "temperature"),
        (GENERATION, '{"top_p": 3}', "top_p"),
        (GENERATION, '{"temperature": NaN}', "temperature"),
        (GENERATION, "[" * 100_000, "nested"),
        (TOKENIZER, '{"eos_token": 3}', "eos_token"),
        (TOKENIZER, '{"split_special_tokens": "no"}', "split_special_tokens"),
        (TOKENIZER, '{"chat_template": 3}', "chat_template"),
        (SPECIAL, '{"bos_token": []}', "bos_token"),
        (TEMPLATE, "x" * (1 << 21), "2,097,152 characters"),
    ],
)
def test_files_that_are_wrong_are_one_line(name: str, content: str, message: str, tmp_path: Path) -> None:
    publish(tmp_path)
    if name == TOKENIZER:
        (tmp_path / TEMPLATE).unlink()
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataError, match=message) as refused:
        sw.open_tokenizer(tmp_path)
    text = str(refused.value)
    assert name in text
    assert text.isprintable()
    assert len(text) < 400 + len(str(tmp_path))
    sw.load(tmp_path)  # the model itself is as good as it was


def test_files_that_are_not_there_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "hf")
    (tmp_path / "hf" / TEMPLATE).write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        sw.open_tokenizer(tmp_path / "hf")
    (tmp_path / "hf" / TEMPLATE).unlink()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "hf" / TEMPLATE).symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        sw.open_tokenizer(tmp_path / "hf")
    (tmp_path / "hf" / TEMPLATE).unlink()
    monkeypatch.setattr("statewise.conventions.published.LONGEST_FILE", 10)
    with pytest.raises(CheckpointError, match="at most 10"):
        sw.open_tokenizer(tmp_path / "hf")


def test_damage_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    publish(tmp_path / "hf")
    convert_model(tmp_path / "hf", tmp_path / "ours")
    text = (tmp_path / "ours" / TEMPLATE).read_text("utf-8")
    (tmp_path / "ours" / TEMPLATE).write_text(text.replace("user", "uses").replace("role", "rolf"), "utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.read_tokenizer(tmp_path / "ours")


def test_in_transformers_it_is_still_the_model_that_was_published(tmp_path: Path) -> None:
    from statewise.integrations.transformers import fast_tokenizer, from_statewise

    theirs, their_tokens = publish(tmp_path / "hf", "chatml", "mamba", seed=1, repetition_penalty=1.1)
    tokenizer = sw.open_tokenizer(tmp_path / "hf")
    ours, tokens = from_statewise(sw.load(tmp_path / "hf"), tokenizer), fast_tokenizer(tokenizer)
    assert tokens.chat_template == their_tokens.chat_template
    written = their_answer(theirs, their_tokens, TALK, 40)
    assert their_answer(ours, tokens, TALK, 40) == written
    ours.save_pretrained(tmp_path / "wrapped")
    tokens.save_pretrained(tmp_path / "wrapped")
    assert answer(tmp_path / "wrapped") == their_tokens.decode(written, skip_special_tokens=True)


def test_gguf_says_so_or_is_refused() -> None:
    texts: list[Any] = ["a", "<s>", "</s>", "<|eot|>"]
    begin, end, turn = (f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot"))
    assert read_files({begin: 1, end: 1}, texts) == {}  # as our own models have it: the document token
    assert read_files({}, texts) == {}
    found = read_files({begin: 1, end: 2, turn: 3, "tokenizer.chat_template": "{{ 1 }}"}, texts)
    assert json.loads(found[GENERATION]) == {"bos_token_id": 1, "eos_token_id": [2, 3]}
    assert json.loads(found[TOKENIZER]) == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found[TEMPLATE] == "{{ 1 }}"
    for wrong in (-1, 4, "2", True, 1.0):
        with pytest.raises(CheckpointError, match="is not a token of the vocabulary"):
            read_files({end: wrong}, texts)  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match="is not text"):
        read_files({end: 2, "tokenizer.chat_template": 3}, texts)
    many = Conventions(end_ids=(0, 1, 2, 3))
    with pytest.raises(CheckpointError, match="keys for 3 end tokens"):
        write_values(many, 1, texts.__getitem__, {text: i for i, text in enumerate(texts)}.get)


def test_the_hub_is_asked_for_these_files() -> None:
    here = ["README.md", "model.safetensors", "config.json", "tokenizer.json", *FILES]
    assert set(needed_files(here, "here")) == {*here[1:]}
