"""The words of a report: a page of Markdown for each claim, in ``pages/``, filled in with what was found.

    # Title                     what was measured, in a line
    A paragraph, and another    the setting
    ## Title of a table         then its headings, the cells of a row, and paragraphs below it:
    | model | ours | *seeds |
    | {name} | {ours:.1p} % | *accuracy:.1p |
    - A difference              from the published setting, and another

Everything is filled in as by ``str.format``; text stands as it is, whatever the format, of several values each is
written, and ".1p" is percent without its sign. A paragraph or a difference that begins with a condition is there only
where that holds: "[rates]" that the value is true, "[not rates]" that it is not, "[h3 in models]" that it holds that
name. One that is a star and a name stands for a list of them.

In a cell, a value that is None, or has no such item, makes it "-". A heading that is a star and a name stands for a
list of headings, and the cell below it for as many values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from statewise.reproduce.report import Report
from statewise.training.tasks.base import Table

PAGES = Path(__file__).parent / "pages"
Values = Mapping[str, Any]
Rows = Iterable[Values]


def told(name: str, values: Values, *rows: Rows | Sequence[tuple[Values, Rows]] | None, **parts: Any) -> Report:
    """The report whose words are the page of this name.

    values: what is filled in        rows: of each of its tables, in their order; or, where a table comes several times,
            of each time further values to fill in and the rows; None leaves the table out
    parts:  what else the report has; ``tables`` come behind those of the page
    """
    return fill((PAGES / f"{name}.md").read_text("utf-8"), values, *rows, **parts)


def fill(page: str, values: Values, *rows: Rows | Sequence[tuple[Values, Rows]] | None, **parts: Any) -> Report:
    """
    >>> page = '''# A {n}
    ...
    ... One.
    ...
    ... [two] Two.
    ...
    ... ## T{n}
    ...
    ... | model | ours | *seeds |
    ... | {name} | {ours:.1p} % | *each:.1f |
    ...
    ... - [three]
    ...   Three.
    ... - Four.'''
    >>> found = [{"name": "H3", "ours": 0.5, "each": [1.0, "diverged"]}, {"name": "S4", "ours": None, "each": None}]
    >>> report = fill(page, {"n": 4, "two": "", "three": 1, "seeds": ["a", "b"]}, found)
    >>> report.title, report.setting, report.differences, report.tables[0].title
    ('A 4', 'One.', ['Three.', 'Four.'], 'T4')
    >>> report.tables[0][1:3]
    (('model', 'ours', 'a', 'b'), [('H3', '50.0 %', '1.0', 'diverged'), ('S4', '-', '-', '-')])
    """
    text, *differences = page.strip().split("\n- ")
    head, *blocks = text.split("\n## ")
    (title,), *setting = (paragraph.splitlines() for paragraph in head.removeprefix("# ").strip().split("\n\n"))
    tables = []
    for block, given in zip(blocks, rows, strict=True):
        if given is None:
            continue
        times: list[Any] = list(given)
        for further, found in times if times and isinstance(times[0], tuple) else [({}, times)]:
            tables.append(_table(block, {**values, **further}, found))
    return Report(
        title=_WORDS.vformat(title, (), values),
        setting=" ".join(_said(map(" ".join, setting), values)),
        tables=[*tables, *parts.pop("tables", ())],
        differences=list(_said(differences, values)),
        **parts,
    )


def _table(block: str, values: Values, rows: Rows) -> Table:
    title, (head, cells), notes = block.split("\n")[0], *_lines_and_notes(block)
    headings: list[str] = []
    parts: list[str] = []
    for heading, part in zip(_split(head), _split(cells), strict=True):
        if heading.startswith("*"):
            name, _, form = part.removeprefix("*").partition(":")
            headings += values[heading[1:]]
            parts += [f"{{{name}[{i}]:{form}}}" for i in range(len(values[heading[1:]]))]
        else:
            headings.append(_WORDS.vformat(heading, (), values))
            parts.append(part)
    filled = [tuple(cell(part, row) for part in parts) for row in rows]
    return Table(_WORDS.vformat(title, (), values), tuple(headings), filled, tuple(_said(notes, values)))


def _lines_and_notes(block: str) -> tuple[list[str], list[str]]:
    lines = [line for line in block.split("\n") if line.startswith("|")]
    return lines, block.partition(lines[-1])[2].strip().split("\n\n")


def _split(line: str) -> list[str]:
    return [part.strip() for part in line.strip()[1:-1].split("|")]


def cell(text: str, row: Values) -> str:
    """
    >>> cell("{a:.1p} %", {"a": 0.5}), cell("{a:.1p} %", {"a": None}), cell("{a[0]:.1f}", {"a": ["diverged"]})
    ('50.0 %', '-', 'diverged')
    """
    try:
        return _CELLS.vformat(text, (), row)
    except _NothingError:
        return "-"


class _NothingError(Exception):
    pass


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        """Text as it is, of several values each with a comma between, and percent without its sign."""
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple)):
            return ", ".join(self.format_field(one, format_spec) for one in value)
        if format_spec.endswith("p"):
            return format(100 * value, f"{format_spec[:-1]}f")
        return format(value, format_spec)


class _Cells(_Words):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        self.get_value(re.split(r"[.\[]", field_name)[0], args, kwargs)  # a name that is no value's is a mistake
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, IndexError, TypeError):
            raise _NothingError from None

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise _NothingError
        if isinstance(value, (list, tuple)):
            return " ".join("-" if one is None else self.format_field(one, format_spec) for one in value) or "-"
        return super().format_field(value, format_spec)


_WORDS, _CELLS = _Words(), _Cells()


def _said(sentences: Iterable[str], values: Values) -> Iterator[str]:
    """Those whose condition, if they have one, is true."""
    for sentence in sentences:
        if re.fullmatch(r"\*\w+", sentence.strip()):
            yield from values[sentence.strip()[1:]]
            continue
        found = re.fullmatch(r"(?:\[(not )?(?:([\w-]+) in )?(\w+)\] )?(.*)", " ".join(sentence.split()))
        assert found is not None  # it fits any text
        negated, item, name, words = found.groups()
        holds = name is None or bool(values[name] if item is None else item in values[name]) != bool(negated)
        if words and holds:
            yield _WORDS.vformat(words, (), values)
