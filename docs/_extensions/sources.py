"""Pages as they are on disk, for the site: tables of contents, and files of the root as pages.

A link is written as the forge follows it, to a file. On the site a link to a page leads to the page, to another file
downloads it, and a folder cannot be opened, so that only its name is left.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import navigation
import notebooks

# Pages of the site whose text lies elsewhere in the repository: so it is written once
ROOT_PAGES = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md", "experiments": "experiments/README.md"}
_FENCED = re.compile(r"(^```.*?^```$|^~~~.*?^~~~$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)|(`+).+?\3", re.DOTALL)  # or code, left as it is


def for_site(text: str, written_in: Path, shown_as: Path, docs: Path) -> str:
    """The text of a file with links as they are from the page.

    written_in: the folder of the file, from which its links lead
    shown_as:   the folder of the page
    """
    root = docs.parent
    pages = {(root / file).resolve(): docs / f"{name}.md" for name, file in ROOT_PAGES.items()}

    def link(found: re.Match[str]) -> str:
        if found[3]:
            return found[0]
        words, target = found[1], found[2]
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        file = (written_in / path).resolve()
        file = pages.get(file, file)
        if file.is_dir():
            if (file / "README.md").exists() and file.is_relative_to(docs):
                file = file / "README.md"
            else:
                return words.lstrip("!")[1:-1]
        elsewhere = file.suffix == ".md" and not file.is_relative_to(docs)
        scheme = "path:" if elsewhere else ""  # says that it is a file, and no page of this name
        return f"{words}({scheme}{Path(os.path.relpath(file, shown_as)).as_posix()}{mark}{anchor})"

    parts = _FENCED.split(text)
    return "".join(part if i % 2 else _LINK.sub(link, part) for i, part in enumerate(parts))


def read(app: Any, name: str, content: list[str]) -> None:
    docs = Path(app.srcdir)
    notebook = docs / f"{name}.ipynb"
    if notebook.exists():
        text = notebooks.as_markdown(content[0], notebook.name)
        content[0] = for_site(text, notebook.parent, notebook.parent, docs)
        return
    page = docs / f"{name}.md"
    if not page.exists():
        return
    source = docs.parent / ROOT_PAGES[name] if name in ROOT_PAGES else page
    text = source.read_text("utf-8") if name in ROOT_PAGES else content[0]
    text = for_site(text, source.parent, page.parent, docs)
    if name == "index":
        text += navigation.contents(docs)
    elif name in navigation.BELOW:
        text += navigation.contents_below(name)
    content[0] = text


def depends(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """What is read again: the first page, whose contents other pages are, and those whose text lies elsewhere."""
    return [name for name in ("index", *navigation.BELOW, *ROOT_PAGES) if name in env.found_docs]


def setup(app: Any) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "markdown")
    app.connect("source-read", read)
    app.connect("env-get-outdated", depends)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
