"""Notebooks as pages: their text and code as Markdown, which the site and the tests run like any other page.

It imports neither Jupyter nor Sphinx. Outputs are not kept in the files: whoever opens a notebook runs it, and the site
runs it when it is built.
"""

from __future__ import annotations

import json
from typing import Any


def cells(text: str) -> list[tuple[str, str]]:
    """The kind, "markdown" or "code", and the source of each cell of a notebook of format 4."""
    found: dict[str, Any] = json.loads(text)
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found["cells"]]


def as_markdown(text: str, name: str) -> str:
    """The page of a notebook: code in fences, without a last line that only shows a figure.

    name: of its file, for a link to it below the title
    """
    parts = []
    for kind, source in cells(text):
        if kind == "code":
            lines = source.rstrip().splitlines()
            if lines and lines[-1].strip() == "figure":
                lines.pop()
            parts.append("\n".join(["```python", *lines, "```"]))
        else:
            parts.append(source.rstrip())
    title, *rest = parts
    first, *others = title.split("\n\n")
    link = f"{{download}}`This page as a notebook <{name}>`"
    return "\n\n".join(["\n\n".join([first, link, *others]), *rest]) + "\n"
