"""A conversation as the ids that its model reads: the chat template, with messages of strangers as plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from statewise.conventions.template import ChatTemplate
from statewise.data.tokenizers import FileTokenizer, Tokenizer
from statewise.errors import DataError, InputError, excerpt

# They stand round the name of a special token in what people write, until it has been encoded as text. Letters for
# private use: a text that holds them loses them.
OPENED, CLOSED = "\uf8f0", "\uf8f1"


class ChatText:
    """Messages to ids, as the publisher's template writes them and ``transformers`` encodes them.

    tokenizer: a :class:`FileTokenizer`; its ``conventions`` have the published template
    template:  a chat template (Jinja); None: the published one
    Errors:    InputError for a tokenizer of another class; DataError if there is no chat template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        if not isinstance(tokenizer, FileTokenizer):
            raise InputError(
                f"a conversation needs the FileTokenizer of a published model; got a {type(tokenizer).__name__}, which "
                "has no special tokens to write turns with"
            )
        conventions = tokenizer.conventions
        published = None if conventions is None else conventions.chat_template
        text = published if template is None else template
        if text is None:
            raise DataError(
                "the model has no chat template, so the form of its conversations is unknown; give one: template=..., "
                "or --template FILE"
            )
        self.tokenizer = tokenizer
        self.template = ChatTemplate(text, {} if conventions is None else conventions.names)
        plain = conventions is not None and conventions.special_is_text
        special = () if plain else tokenizer.special_names
        self._marked = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self._pieces = re.compile(f"{OPENED}({self._marked.pattern}){CLOSED}|[{OPENED}{CLOSED}]")

    def encode(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> tuple[int, ...]:
        """The ids of these messages, by default up to where an answer begins. The same as ``transformers``'
        ``apply_chat_template(messages, add_generation_prompt=True, sanitize_control_tokens=True)``.

        messages:  JSON data. Names of special tokens become ordinary text wherever they are, but in a ``role``: give
                   roles that you know
        variables: more that the template knows, such as ``tools``: JSON data, in which these names are text too
        """
        rendered = self.template.render(
            [{name: value if name == "role" else self._mark(value) for name, value in m.items()} for m in messages],
            add_generation_prompt=add_generation_prompt,
            **{name: self._mark(value) for name, value in variables.items()},
        )
        pieces = self._pieces.split(rendered)
        ids = list(self.tokenizer.encode_published(pieces[0], whole=False))
        for i, piece in enumerate(pieces[1:], start=1):
            if piece:
                ids += self._encode_within(piece, as_text=i % 2 == 1)
        if not ids:
            raise DataError("the chat template writes nothing for this conversation; give another: template=...")
        return tuple(ids)

    def _mark(self, value: Any) -> Any:
        """The same JSON data, with marks round each name of a special token."""
        if isinstance(value, str):
            text = value.replace(OPENED, "").replace(CLOSED, "")
            return self._marked.sub(lambda name: f"{OPENED}{name[0]}{CLOSED}", text)
        if isinstance(value, Mapping):
            return {self._mark(key): self._mark(inner) for key, inner in value.items()}
        return [self._mark(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def _encode_within(self, piece: str, *, as_text: bool) -> list[int]:
        """Behind a line break that is then left out: some tokenizers put a space before what they are given."""
        encode = self.tokenizer.encode if as_text else lambda text: self.tokenizer.encode_published(text, whole=False)
        line, ids = encode("\n"), encode("\n" + piece)
        ids = ids[len(line) :] if ids[: len(line)] == line else encode(piece)
        if as_text and (forged := self.tokenizer.special_names[piece]) in ids:
            raise DataError(
                f"the message contains {excerpt(piece)}, which the tokenizer turns into the special token {forged} "
                "even as text; leave it out"
            )
        return ids


def n_agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two rows have in common at their beginning.

    >>> n_agreeing([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
