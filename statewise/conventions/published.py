"""The files that say how a published model is used: ``generation_config.json``, ``tokenizer_config.json``,
``special_tokens_map.json`` and ``chat_template.jinja``.

Others wrote them, so each value is checked by a declared type. What is not read here may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from statewise.configuration import Config, from_dict, parse_json
from statewise.configuration.types import Natural, NonNegative, Positive, Ratio, Share
from statewise.errors import ConfigError, DataError, excerpt, reason, retold

GENERATION, TOKENIZER, SPECIAL, TEMPLATE = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
FILES = (GENERATION, TOKENIZER, SPECIAL, TEMPLATE)
LONGEST_FILE = 64 << 20  # bytes; the largest lists some thousands of added tokens
LONGEST_TEMPLATE = 1 << 20  # characters
MOST_ENDS = 1000  # end tokens
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOP_K = 50  # of transformers, where a model samples and does not say


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(Config):
    """What is read of ``generation_config.json``. None: the file does not say."""

    eos_token_id: Natural | tuple[Natural, ...] | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    do_sample: bool | None = None
    temperature: NonNegative | None = None
    top_k: Natural | None = None
    top_p: Share | None = None
    min_p: Ratio | None = None
    repetition_penalty: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """How a published model is used.

    end_ids:        an answer ends at any of them
    begin_id:       begins a text, where a text would otherwise hold no token at all
    padding_id:     stands where a row of a batch has ended
    chat_template:  a Jinja template that writes a conversation as one text; None: none was published
    names:          the special tokens by their role, as a template asks for them: {"bos_token": "<s>"}
    special_is_text: whether the name of a special token within a text is ordinary text
    settings:       how it is meant to be drawn from
    files:          the texts of the files that all this was read from, by their names, for a copy to carry
    """

    end_ids: tuple[int, ...] = ()
    begin_id: int | None = None
    padding_id: int | None = None
    chat_template: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    special_is_text: bool = False
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def sampling(self) -> dict[str, Any]:
        """The options of ``generate`` that these settings are; greedy unless they ask for samples, as in
        ``transformers``, and with its default of ``top_k`` where they do."""
        settings = self.settings
        penalty = {"repetition_penalty": settings.repetition_penalty or 1.0}
        if not settings.do_sample:
            return {"temperature": 0.0, **penalty}
        top_k = TOP_K if settings.top_k is None else settings.top_k
        return {
            "temperature": 1.0 if settings.temperature is None else settings.temperature,
            "top_k": top_k or None,
            "top_p": settings.top_p,
            "min_p": settings.min_p,
            **penalty,
        }


def read_conventions(
    files: Mapping[str, str], where: object, find: Callable[[str], int | None], vocab_size: int
) -> Conventions:
    """What these files say; none of them has to be there.

    files:   the text of each by its name, of ``FILES``
    where:   the folder that they are in, for messages
    find:    the id of a token by its text, None if it is not a token

    The end tokens are those of ``generation_config.json``, as for ``transformers``; where it names none, it is the
    ``eos_token`` of ``tokenizer_config.json``.

    Errors:  DataError, one line that names the file, for JSON that is none, a value of a wrong type or out of its
             range, an id outside the vocabulary, and a template of more than 1,048,576 characters.
    """
    path = Path(str(where))
    given = _object(files, GENERATION, path)
    known = {f.name for f in fields(GenerationSettings)}
    with retold(DataError, ConfigError):
        settings = from_dict(
            GenerationSettings, {k: v for k, v in given.items() if k in known}, where=str(path / GENERATION)
        )
    ends = settings.eos_token_id
    end_ids = () if ends is None else ends if isinstance(ends, tuple) else (ends,)
    if len(end_ids) > MOST_ENDS:
        raise DataError(f"{path / GENERATION} has {len(end_ids):,} end tokens; expected at most {MOST_ENDS:,}")
    for i in end_ids:
        if i >= vocab_size:
            raise DataError(
                f"{path / GENERATION}: eos_token_id={excerpt(i)} is not a token of the vocabulary of {vocab_size:,}; "
                "expected an id below it"
            )
    tokens = _object(files, TOKENIZER, path)
    names = _names(_object(files, SPECIAL, path), path / SPECIAL) | _names(tokens, path / TOKENIZER)
    if not end_ids and (found := find(names.get("eos_token", ""))) is not None:
        end_ids = (found,)
    begin, padding = (
        i if i is not None and 0 <= i < vocab_size else None  # -1: there is none
        for i in (settings.bos_token_id, settings.pad_token_id)
    )
    plain = tokens.get("split_special_tokens", False)
    if not isinstance(plain, bool):
        raise DataError(
            f"{path / TOKENIZER}: split_special_tokens={excerpt(plain)} is not a boolean; expected true or false"
        )
    return Conventions(
        end_ids=tuple(dict.fromkeys(end_ids)),
        begin_id=find(names.get("bos_token", "")) if begin is None else begin,
        padding_id=padding,
        chat_template=_template(files, tokens, path),
        names=names,
        special_is_text=plain,
        settings=settings,
        files={name: files[name] for name in FILES if name in files},
    )


def special_texts(files: Mapping[str, str], where: object) -> tuple[dict[str, str], bool]:
    """The special tokens by their role, and whether ``bos_token`` goes before every text: what a tokenizer of GPT-2's
    kind says beside its vocabulary, as OPT's does.

    Errors:  DataError, as :func:`read_conventions`.
    """
    path = Path(str(where))
    tokens = _object(files, TOKENIZER, path)
    names = _names(_object(files, SPECIAL, path), path / SPECIAL) | _names(tokens, path / TOKENIZER)
    return names, tokens.get("add_bos_token") is True


def with_config_ids(files: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """The files, with a ``generation_config.json`` of the end tokens in config.json where there is none, as
    ``transformers`` makes one; none where config.json names none either. Nothing is added to no files."""
    found = dict(files)
    if found and GENERATION not in found and config.get("eos_token_id") is not None:
        ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
        found[GENERATION] = json.dumps(ids, indent=2) + "\n"
    return found


def read_text(path: Path) -> str:
    """The text of one of ``FILES``, or of a tokenizer.json.

    Errors:  DataError if it is too large for one of ``FILES``, is not UTF-8, or cannot be read.
    """
    try:
        size = path.stat().st_size
        if path.name in FILES and size > LONGEST_FILE:
            raise DataError(f"{path} has {size:,} bytes; expected at most {LONGEST_FILE:,}")
        return path.read_bytes().decode("utf-8")  # line ends stay as they are
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text") from error


def check_template(text: str, where: object) -> str:
    """Errors:  DataError for a template of more than 1,048,576 characters."""
    if len(text) > LONGEST_TEMPLATE:
        raise DataError(
            f"{where}: the chat template has {len(text):,} characters; expected at most {LONGEST_TEMPLATE:,}"
        )
    return text


def _object(files: Mapping[str, str], name: str, path: Path) -> dict[str, Any]:
    if name not in files:
        return {}
    with retold(DataError, ConfigError):
        data = parse_json(files[name], str(path / name), constants=True)
    if not isinstance(data, dict):
        raise DataError(f"{path / name} does not contain a JSON object; expected the file that transformers writes")
    return data


def _names(data: Mapping[str, Any], where: Path) -> dict[str, str]:
    """The special tokens by their role: a text each, or an object with the text as its "content"."""
    found = {}
    for role in ROLES:
        value = data.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise DataError(
                f'{where}: {role}={excerpt(value)} is not a token; expected its text, or {{"content": text}}'
            )
        found[role] = text
    return found


def _template(files: Mapping[str, str], tokens: Mapping[str, Any], path: Path) -> str | None:
    """That of ``chat_template.jinja`` before the one in ``tokenizer_config.json``; of several the "default"."""
    if TEMPLATE in files:
        return check_template(files[TEMPLATE], path / TEMPLATE)
    value = tokens.get("chat_template")
    if isinstance(value, list):
        named = [each for each in value if isinstance(each, dict) and each.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is None:
        return None
    if not isinstance(value, str):
        raise DataError(
            f"{path / TOKENIZER}: chat_template={excerpt(value)} is not a template; expected a text, or a list of "
            '{"name": ..., "template": ...}'
        )
    return check_template(value, path / TOKENIZER)
