"""How a GGUF file says that its model is used: its end tokens, its chat template; as files of ``transformers``, and the
way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from statewise.checkpoints.convert.gguf_values import Value
from statewise.conventions.published import GENERATION, TEMPLATE, TOKENIZER, Conventions
from statewise.errors import CheckpointError, excerpt

CHAT_TEMPLATE = "tokenizer.chat_template"
BEGIN, END, END_OF_TURN, END_OF_MESSAGE, PADDING, UNKNOWN = (
    f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom", "padding", "unknown")
)
END_KEYS = (END, END_OF_TURN, END_OF_MESSAGE)
ROLE_OF = {BEGIN: "bos_token", END: "eos_token", PADDING: "pad_token", UNKNOWN: "unk_token"}
ADD_BEGIN, ADD_END = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"


def read_files(metadata: Mapping[str, Value], tokens: list[Value]) -> dict[str, str]:
    """The files that say the same. None of a file in which one token begins and ends all texts, and that has no
    template: that is the document token, as our own models have it.

    tokens:  the texts of the vocabulary
    Errors:  CheckpointError for an id that is none of the vocabulary.
    """
    ids: dict[str, int] = {}
    for key in (*END_KEYS, *ROLE_OF):
        value = metadata.get(key)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < len(tokens):
            raise CheckpointError(f"{key}={excerpt(value)} is not a token of the vocabulary of {len(tokens):,}")
        ids[key] = value
    template = metadata.get(CHAT_TEMPLATE)
    ends = list(dict.fromkeys(ids[key] for key in END_KEYS if key in ids))
    if template is None and ends in ([], [ids.get(BEGIN)]):
        return {}
    if not isinstance(template, (str, type(None))):
        raise CheckpointError(f"{CHAT_TEMPLATE} is not text; expected a template")
    generation = {"bos_token_id": ids.get(BEGIN), "eos_token_id": ends, "pad_token_id": ids.get(PADDING)}
    found = {
        GENERATION: _json({key: value for key, value in generation.items() if value not in (None, [])}),
        TOKENIZER: _json({role: str(tokens[ids[key]]) for key, role in ROLE_OF.items() if key in ids}),
    }
    return found if template is None else found | {TEMPLATE: template}


def write_values(
    conventions: Conventions, document_token: int, text_of: Callable[[int], str], find: Callable[[str], int | None]
) -> dict[str, Value]:
    """The values that llama.cpp reads. Such a file has no settings for sampling.

    Errors:  CheckpointError for more end tokens than there are keys for.
    """
    named = conventions.names.get("eos_token")
    ends = sorted(conventions.end_ids or (document_token,), key=lambda i: text_of(i) != named)
    if len(ends) > len(END_KEYS):
        raise CheckpointError(
            f"GGUF has keys for {len(END_KEYS)} end tokens and the model has {len(ends)}; use another format"
        )
    values: dict[str, Value] = dict(zip(END_KEYS, ends))
    for key, i in (
        (BEGIN, conventions.begin_id),
        (PADDING, conventions.padding_id),
        (UNKNOWN, find(conventions.names.get("unk_token", ""))),
    ):
        if i is not None:
            values[key] = i
    if conventions.chat_template is not None:
        values[CHAT_TEMPLATE] = conventions.chat_template
    return values


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"
