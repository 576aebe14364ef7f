"""The reference, from docstrings: a page for each part of the package, and one for the commands.

Before Sphinx reads, `reference/api/*.rst` are written. A name that a docstring refers to and that does not exist is a
warning, and so an error.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import docstrings
from documented import Documented
from fields import Field, fields_of

import statewise

FOLDER = "reference/api"


def first_line(value: Any) -> str:
    """The first sentence of a docstring."""
    doc = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:;])\s(?=[A-Z`])", doc)[0].rstrip(":") if doc else ""


def pages(documented: Documented) -> dict[str, str]:
    """Text of every page of the reference, by name."""
    found = {}
    for part, names in documented.parts.items():
        path = f"statewise.{part}"
        lines = [path, "=" * len(path), ""]
        if part in documented.extra:
            lines += [f".. automodule:: {path}", ""]
        lines += _entries([(name, "statewise") for name in sorted(names)])
        rest = sorted(documented.extra.get(part, []))
        if rest and names:
            lines += [f"More in {path}", "-" * (8 + len(path)), ""]
            lines += [f"These are imported from their part: ``from {path} import {rest[0]}``.", ""]
        lines += _entries([(name, path) for name in rest])
        found[part] = "\n".join(lines)
    return found | {"names": table(documented)}


def _entries(names: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for name, module in names:
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value):
            kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        else:
            kind = "autofunction"
        call = "()" if kind == "autoexception" else ""  # what is given to one is its message
        lines += [f".. {kind}:: {module}.{name}{call}"]
        lines += ["   :members:", ""] if inspect.isclass(value) else [""]
    return lines


def table(documented: Documented) -> str:
    """Every public name with its first sentence, part by part."""
    lines = [":orphan:", "", "Public names", "============", ""]
    for part, names in documented.parts.items():
        if not names:
            continue
        lines += [f".. rubric:: :doc:`statewise.{part} <{part}>`", "", ".. list-table::", "   :widths: 34 66", ""]
        for name in sorted(names):
            value = getattr(statewise, name)
            said = docstrings.inline(first_line(value), lambda target: None)
            lines += [f"   * - :py:obj:`{name} <statewise.{name}>`", f"     - {said}"]
        lines.append("")
    return "\n".join(lines)


# -- Sphinx ----------------------------------------------------------------------------------------------------------


def write(app: Any) -> None:
    import commands

    app.env.documented = documented = Documented()
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"{name}.rst": text for name, text in (pages(documented) | {"commands": commands.page()}).items()}
    for path in folder.glob("*.rst"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:  # what has not changed is not read again
            path.write_text(text, "utf-8")


def docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    from sphinx.util import logging

    documented: Documented = app.env.documented
    home = value.fget if isinstance(value, property) else value

    def resolve(target: str) -> str | None:
        exists, known = documented.find(target, home)
        if not exists:
            logging.getLogger(__name__).warning("the docstring of %s refers to %s: no such name", name, target)
        return known

    items = docstrings.parse(lines)
    if what == "module" and items and items[0].kind == "entry":  # a title with a colon
        items[0] = docstrings.Item("text", "", [f"{items[0].head}: {items[0].lines[0]}", *items[0].lines[1:]])
    fields = fields_of(value) if what in ("class", "exception") else []
    rows, items = _with_fields(fields, items)
    lines[:] = docstrings.render(items[:1], resolve)
    if rows:
        lines += _fields_table(rows, resolve)
    lines += docstrings.render(items[1:], resolve)


def _with_fields(
    fields: list[Field], items: list[docstrings.Item]
) -> tuple[list[tuple[Field, list[str]]], list[docstrings.Item]]:
    """Each field with what the docstring says of it, alone or together with others; and the rest."""
    names = {field.name for field in fields}
    own = [item for item in items if item.kind == "entry" and names.issuperset(item.head.split(", "))]
    said = {name: item.lines for item in own for name in item.head.split(", ")}
    rows = [(field, said.get(field.name) or ([field.comment] if field.comment else [])) for field in fields]
    return rows, [item for item in items if item not in own]


def _fields_table(rows: list[tuple[Field, list[str]]], resolve: docstrings.Resolve) -> list[str]:
    lines = [".. list-table::", "   :class: fields", "   :widths: 28 72", ""]
    for field, said in rows:
        default = f" = {field.default}" if field.default else ""
        lines.append(f"   * - ``{field.name}{default}``" if len(default) < 40 else f"   * - ``{field.name} = ...``")
        kind = docstrings.inline(field.type, resolve) if " " in field.type else f"``{field.type}``"
        body = docstrings._body(said, resolve) if said else []
        lines += [f"     - :fieldtype:`{kind}`" if "``" not in kind else f"     - {kind}", ""]
        lines += ["       " + line for line in body]
    return [*lines, ""]


def signature(app: Any, what: str, name: str, value: Any, options: Any, given: str, returns: str) -> Any:
    """Of a dataclass the names and defaults: the table of fields has the rest. Quotes of annotations are left out."""
    if what not in ("class", "exception"):
        return None
    fields = fields_of(value)
    if not fields:
        return ("()", None) if given is None else None
    from statewise.configuration import Config

    if issubclass(value, Config):
        return "(**fields)", None
    return "(" + ", ".join(f.name + (f"={f.default}" if f.default else "") for f in fields) + ")", None


def missing(app: Any, env: Any, node: Any, content: Any) -> Any:
    """A type in a signature: a link where the reference has it, and else its name, if there is such a thing at all."""
    if node.get("refdomain") != "py":
        return None
    exists, known = _found(env.documented, node["reftarget"])
    if known is not None and known != node["reftarget"]:
        found = env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", known, node, content)
        return found if found is not None else content
    return content if exists or _anywhere(node["reftarget"]) else None


@functools.cache
def _found(documented: Documented, target: str) -> tuple[bool, str | None]:
    """Thousands of signatures name the same few types, and looking for one tries to import it."""
    return documented.find(target, statewise)


def _anywhere(name: str) -> bool:
    """Whether a module of the package imports this name, if only for its annotations."""
    return bool(re.search(rf"import (?:.*\W)?{re.escape(name.split('.')[0])}\b", _sources()))


@functools.cache
def _sources() -> str:
    return "\n".join(path.read_text("utf-8") for path in Path(statewise.__file__).parent.rglob("*.py"))


def skip(app: Any, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Methods that another library puts into a class of ours are not documented: scikit-learn does."""
    home = getattr(value, "__module__", None) or "statewise"
    return None if home.startswith("statewise") else True


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
