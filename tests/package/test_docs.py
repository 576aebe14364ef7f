"""The documentation runs: Python blocks are executed, command lines are parsed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from places import ROOT
from site_extensions import page_blocks

from statewise.cli import app

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = [*sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]), *NOTEBOOKS]


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """The first line and the text of each fenced block in one of these languages."""
    found = page_blocks.blocks(page_blocks.text_of(page))
    return [(block.line, block.text) for block in found if block.language in languages]


def commands() -> list[tuple[str, list[str]]]:
    """Every command line of the pages (after a prompt $, or the whole line in a bash block), as words."""
    found = []
    for page in PAGES:
        for first, text in blocks(page, "console", "bash", "sh"):
            for offset, line in enumerate(text.replace("\\\n", " ").splitlines()):
                if line.startswith("$ ") or (line.strip() and not any(t.startswith("$ ") for t in text.splitlines())):
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    words = words[: next((i for i, w in enumerate(words) if w in ("|", ">", "&&")), len(words))]
                    found.append((f"{page.name}:{first + offset}", words))
    return found


PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]
# pages that need a package of an extra
NEEDED = {
    **dict.fromkeys(["following.md", "plots.md", *(notebook.name for notebook in NOTEBOOKS)], "matplotlib"),
    "transformers.md": "transformers",
    "export.md": "onnxruntime",
}


def left_to_the_site(page: Path) -> bool:
    """`.ci/run` builds the site after the tests, and the build runs the pages below docs/."""
    return os.environ.get("STATEWISE_NO_PAGES") == "1" and page.is_relative_to(ROOT / "docs")


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """As the site runs them: in order, in one namespace, in an empty folder. They print what the page says."""
    if left_to_the_site(page):
        pytest.skip("make docs runs it: STATEWISE_NO_PAGES=1")
    if page.name in NEEDED:
        pytest.importorskip(NEEDED[page.name], reason=f"{NEEDED[page.name]} is not installed")
    page_blocks.run(page, tmp_path)


def test_there_are_commands() -> None:
    lines = [" ".join(words) for _, words in commands()]
    assert "make demo" in lines
    assert "make test" in lines
    assert any(line.startswith("statewise train") for line in lines)


@pytest.mark.parametrize(("where", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_exist(where: str, words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"{where}: no such target"
    elif words[0] == "statewise":
        group = typer.main.get_command(app)
        name, command, rest = group.resolve_command(group.make_context("statewise", words[1:]), words[1:])
        command.make_context(name, rest)  # an option or a value that does not exist is an error


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            made_by_the_site = page.parent.name == "reference" and target.startswith("api/")
            assert made_by_the_site or (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
