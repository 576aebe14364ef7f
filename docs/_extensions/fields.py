"""The fields of a dataclass for the reference: name, default as written, what it takes, what is said of it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: str  # "" where there is none
    comment: str  # behind it in the source


@functools.cache
def _declared(cls: type) -> dict[str, Field]:
    """Those of the class's own body."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value is not None else ""
            comment = comments.get(node.end_lineno or 0, "")
            comment = "" if comment.startswith(("type:", "noqa")) else comment
            found[node.target.id] = Field(node.target.id, ast.unparse(node.annotation), default, comment)
    return found


def fields_of(cls: Any) -> list[Field]:
    """In the order of the call, inherited ones too; of a config with the words of its errors for what it takes.

    >>> from statewise.mixers.s4d import S4DConfig
    >>> [(field.name, field.default) for field in fields_of(S4DConfig) if field.name == "d_state"]
    [('d_state', '64')]
    """
    if not dataclasses.is_dataclass(cls):
        return []
    found = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        declared = next((_declared(base)[field.name] for base in cls.__mro__ if field.name in _declared(base)), None)
        if declared is not None:
            words = _words(cls, field.name)
            if declared.default.isupper() and len(repr(field.default)) < 30:  # a constant: its value says more
                declared = dataclasses.replace(declared, default=repr(field.default))
            found.append(dataclasses.replace(declared, type=words) if words else declared)
    return found


def _words(cls: Any, name: str) -> str:
    from statewise.configuration import Config
    from statewise.configuration.base import schema

    return schema(cls)[name].words(False) if issubclass(cls, Config) else ""
