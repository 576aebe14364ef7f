"""A ``tokenizer.json``: its text, its document token, and what it puts before a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from statewise.errors import DataError, reason

DOCUMENT_TOKEN_NAMES = (
    "<|endoftext|>",
    "</s>",
    "<s>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<eos>",
    "<bos>",
    "[EOS]",
    "[BOS]",
    "[SEP]",
    "[CLS]",
)


def read_tokenizer_file(path: Path) -> tuple[str, str]:
    """Its name and its text. Errors: DataError if it cannot be read."""
    path = path.expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        return str(path), path.read_text("utf-8")
    except FileNotFoundError as error:
        raise DataError(f'there is no tokenizer at {path}; give "bytes" or the path of a tokenizer.json') from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a tokenizer.json: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the tokenizer {path}: {reason(error)}") from error


def put_before(post_processor: Any) -> Iterator[int]:
    """What the post-processor of a tokenizer.json, if it has one, puts before a text."""
    kind = post_processor["type"] if post_processor else None
    if kind == "Sequence":
        for inner in reversed(post_processor["processors"]):  # the last one's comes first
            yield from put_before(inner)
    elif kind in ("BertProcessing", "RobertaProcessing"):
        yield post_processor["cls"][1]
    elif kind == "TemplateProcessing":
        template = post_processor["single"]
        n_before = next((i for i, piece in enumerate(template) if "Sequence" in piece), 0)
        for piece in template[:n_before]:
            yield from post_processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]


def choose_document_token(name: str, special: Mapping[str, int], others: Iterable[int | None] = ()) -> int:
    """The first special token of one of the names; without any the first of the ``others``.

    Errors:  DataError if there is none.
    """
    named = (special[candidate] for candidate in DOCUMENT_TOKEN_NAMES if candidate in special)
    for found in chain(named, others):
        if found is not None:
            return found
    raise DataError(
        f"{name} has no special token to begin documents with (looked for {', '.join(DOCUMENT_TOKEN_NAMES[:4])}, ...); "
        'add one: tokenizer.add_special_tokens(["<|endoftext|>"]), then save it'
    )
