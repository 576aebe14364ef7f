"""Our docstrings as reStructuredText: prose, `name: what it is` lines, sections such as `Shapes:`, doctests, tables.

Docstrings are written for people who read the source. They hold *, | and _ of formulas, which reStructuredText takes
for markup; so everything is escaped but ``code``, :role:`targets`, `names` and docs/pages.md. A line that begins with
the name of a field or an argument and a colon describes it, and lines that are indented go on. What a section says
after three spaces begins a new line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SECTIONS = (
    "Shapes",
    "Units",
    "Cost",
    "Memory",
    "Forms",
    "State",
    "Numerics",
    "Limits",
    "Gradients",
    "Chance",
    "Errors",
    "Published",
    "Returns",
    "Stability",
    "Padding",
    "Outputs",
    "Inputs",
    "Missing",
    "Backward",
    "Source",
)
_SECTION = re.compile(rf"({'|'.join(SECTIONS)}):(?:\s+(.*))?$")
_ENTRY = re.compile(r"(?!None|True|False)([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*):\s+(\S.*)$")
_INLINE = re.compile(
    r"``(?P<code>.+?)``|:(?:\w+:)?\w+:`(?P<target>[^`]+)`|`(?P<name>[^`]+)`|docs/(?P<page>[\w/-]+)\.md"
)
_MARKUP = re.compile(r"([\\*|_`])")
Resolve = Callable[[str], "str | None"]  # the name under which the reference documents a target, None: it does not


@dataclass
class Item:
    """kind: text, section, entry, verbatim. head: of a section its name, of an entry the names. lines: the rest"""

    kind: str
    head: str
    lines: list[str]


def parse(lines: Iterable[str]) -> list[Item]:
    """
    >>> [(item.kind, item.head) for item in parse(["A sum.", "", "x: (n,)", "Errors:  none,", "         never"])]
    [('text', ''), ('entry', 'x'), ('section', 'Errors')]
    """
    items: list[Item] = []
    current: Item | None = None
    after_blank = True
    for line in lines:
        indented = line.startswith(" ")
        if not line.strip():
            if current is not None and current.lines:
                current.lines.append("")
            after_blank = True
            continue
        kind = current.kind if current is not None else "nothing"
        goes_on = {"nothing": False, "verbatim": indented or not after_blank or line.startswith(">>>")}
        if goes_on.get(kind, indented and (kind in ("section", "entry") or not after_blank)):
            current.lines.append(line)  # type: ignore[union-attr]
        elif line.startswith((">>>", "===")) or indented:
            items.append(current := Item("verbatim", "", [line]))
        elif found := _SECTION.match(line):
            items.append(current := Item("section", found[1], [found[2]] if found[2] else []))
        elif (found := _ENTRY.match(line)) and (after_blank or current is None or current.kind != "text"):
            items.append(current := Item("entry", found[1], [found[2]]))
        elif current is None or after_blank or current.kind == "section":
            items.append(current := Item("text", "", [line]))
        else:
            current.lines.append(line)
        after_blank = False
    for item in items:
        while item.lines and not item.lines[-1]:
            item.lines.pop()
    return items


def inline(text: str, resolve: Resolve) -> str:
    """
    >>> print(inline("C B^T * x_t, see :func:`~sw.load` and ``x``", lambda target: None))
    C B^T \\* x\\_t, see ``load`` and ``x``
    """
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        parts.append(_MARKUP.sub(r"\\\1", text[end : found.start()]))
        if found["target"]:
            parts.append(_reference(found["target"], resolve))
        elif found["page"]:
            parts.append(f":doc:`/{found['page']}`")
        else:
            parts.append(f"``{found['code'] or found['name']}``")
        if text[found.end() : found.end() + 1].isalnum():  # ``x``s
            parts.append("\\ ")
        end = found.end()
    return "".join(parts) + _MARKUP.sub(r"\\\1", text[end:])


def _reference(target: str, resolve: Resolve) -> str:
    short = target.startswith("~")
    name = target.lstrip("~.")
    label = name.rpartition(".")[2] if short else name
    known = resolve(name)
    return f":py:obj:`{label} <{known}>`" if known else f"``{label}``"


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _body(lines: list[str], resolve: Resolve) -> list[str]:
    """Lines below a head: paragraphs; what is indented deeper and begins with a name is a list."""
    out: list[str] = []
    for block in _paragraphs(lines):
        indents = [len(line) - len(line.lstrip()) for line in block[1:]]
        base = min(indents, default=0)
        kinds = re.compile(rf"^\s{{{base}}}(\"\w[^\"]*\"(?:, \"\w[^\"]*\")*|``\w+``): ")
        if any(kinds.match(line) for line in block[1:]):
            head = []
            for line in block:
                if head and kinds.match(line):
                    out += [inline(" ".join(head), resolve), ""] if head[0][:2] != "- " else _bullet(head, resolve)
                    head = ["- " + line.strip()]
                else:
                    head.append(line.strip())
            out += [*_bullet(head, resolve), ""]
        else:
            out += [inline(" ".join(line.strip() for line in block), resolve), ""]
    return out


def _bullet(head: list[str], resolve: Resolve) -> list[str]:
    return ["- " + inline(" ".join(head)[2:], resolve)]


def _section(item: Item, resolve: Resolve) -> list[str]:
    """A field; parts behind three spaces, and lines of shapes, stand in lines of their own."""
    paragraphs = list(_paragraphs(item.lines))
    out = [f":{item.head}:"]
    for block in paragraphs:
        text = block[0].strip()
        for line in block[1:]:
            starts = item.head == "Shapes" and re.match(r"[\w, ]+: ", line.strip()) and not line.startswith(" " * 14)
            text += ("   " if starts else " ") + line.strip()
        text = re.sub(r"\s+->\s+", " -> ", text)
        parts = [part for part in re.split(r"\s{3,}", text) if part]
        if len(parts) > 1:
            out += [f"   | {_named(part, resolve)}" for part in parts] + [""]
        else:
            out += ["   " + (_named(text, resolve) if item.head == "Shapes" else inline(text, resolve)), ""]
    return out


def _named(part: str, resolve: Resolve) -> str:
    found = re.match(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): (.*)$", part)
    if not found:
        return inline(part, resolve)
    names = ", ".join(f"``{name}``" for name in found[1].split(", "))
    return f"{names}: {inline(found[2], resolve)}"


def render(items: list[Item], resolve: Resolve) -> list[str]:
    """Items as lines of reStructuredText."""
    out: list[str] = []
    for item in items:
        if item.kind == "text":
            first, *rest = item.lines
            if rest and rest[0].startswith(" ") and first.endswith(":"):
                out += [inline(first, resolve), ""]
                out += _body(["", *[line[4:] for line in rest]], resolve)
            elif first.startswith("- "):
                out += [f"- {inline(bullet, resolve)}" for bullet in " ".join(item.lines)[2:].split(" - ")]
            else:
                out += _body(item.lines, resolve)
        elif item.kind == "section":
            out += _section(item, resolve)
        elif item.kind == "entry":
            names = ", ".join(f"``{name}``" for name in item.head.split(", "))
            out += [names, *("   " + line for line in _body(item.lines, resolve)), ""]
        elif item.lines[0].startswith(">>>"):
            out += ["", *item.lines]
        elif item.lines[0].startswith("==="):
            out += ["", *(line.replace("|", r"\|") for line in item.lines)]
        else:
            out += ["", "::", "", *("    " + line for line in item.lines)]
        out.append("")
    return out
