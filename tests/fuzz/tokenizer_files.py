"""Good small tokenizers, what is published beside them, and a corpus in their tokens."""

from __future__ import annotations

from pathlib import Path

from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.conventions.published import GENERATION, SPECIAL, TEMPLATE, TOKENIZER, read_text
from statewise.conventions.template import ChatTemplate
from statewise.data.text import TextDataConfig, open_corpus
from statewise.data.tokenizers import FileTokenizer, load_tokenizer


def write_tokenizer(folder: Path) -> None:
    import tokenizers as library

    library_of = library.Tokenizer(library.models.BPE({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    library_of.add_special_tokens(["<|endoftext|>"])
    library_of.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library_of.decoder = library.decoders.ByteLevel()
    library_of.post_processor = library.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    (folder / "tokenizer.json").write_text(library_of.to_str())
    (folder / "text.txt").write_text("ab ba abab\n" * 50)


def read_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("ab ba é")
    tokenizer.decode([*ids, tokenizer.vocab_size - 1])
    stream = tokenizer.stream_decoder()
    "".join(stream.feed(token) for token in ids) + stream.finish()


def write_conventions(folder: Path) -> None:
    write_tokenizer(folder)
    (folder / GENERATION).write_text('{"eos_token_id": [0, 3], "bos_token_id": 0, "do_sample": true, "top_p": 0.9}')
    (folder / TOKENIZER).write_text(
        '{"bos_token": "<|endoftext|>", "eos_token": {"content": "ab"}, "added": {"0": {}}}'
    )
    (folder / SPECIAL).write_text('{"unk_token": "<|endoftext|>"}')
    (folder / TEMPLATE).write_text(
        "{% for m in messages %}{{ bos_token + m.content | trim }}{{ eos_token }}{% endfor %}"
    )


def read_conventions(folder: Path) -> None:
    files = {name: read_text(folder / name) for name in PUBLISHED_FILES if (folder / name).exists()}
    conventions = FileTokenizer(folder / "tokenizer.json", files=files).conventions
    if conventions is not None and conventions.chat_template is not None:
        template = ChatTemplate(conventions.chat_template, conventions.names, seconds=1)
        template.render([{"role": "user", "content": " a b "}])


def read_corpus(folder: Path) -> None:
    config = TextDataConfig(source=str(folder / "text.txt"), tokenizer=str(folder / "tokenizer.json"))
    open_corpus(config).describe()
