"""The documentation site: it has every page and every public name, and notices what is wrong."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest
from places import ROOT
from site_extensions import (
    commands,
    docstrings,
    documented,
    fields,
    navigation,
    page_blocks,
    reference,
    site_check,
    sources,
)

import statewise

DOCS = ROOT / "docs"


def test_every_page_has_its_place() -> None:
    missing = navigation.without_place(DOCS)
    assert not missing, f"say in docs/_extensions/navigation.py where these stand: {missing}"
    gone = navigation.placed() - navigation.pages(DOCS)
    assert not gone, f"docs/_extensions/navigation.py names pages that are not there: {gone}"


def test_the_reference_has_every_public_name() -> None:
    known = documented.Documented()
    text = "\n".join(reference.pages(known).values())
    for name in set(statewise.__all__) - {"__version__"}:
        value = getattr(statewise, name)
        said = f":: statewise.{name}"
        assert any(line.removesuffix("()").endswith(said) for line in text.splitlines()), name
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_docstrings_refer_to_what_there_is() -> None:
    known = documented.Documented()
    for name in set(statewise.__all__) - {"__version__"}:
        value = getattr(statewise, name)
        for found in docstrings._INLINE.finditer(inspect.getdoc(value) or ""):
            if found["target"]:
                exists, _ = known.find(found["target"].lstrip("~."), value)
                assert exists, f"{name} refers to {found['target']}"


def test_the_reference_has_every_command() -> None:
    page = commands.page()
    for name in ("train", "predict", "generate", "evaluate", "info"):
        assert f"\nstatewise {name}\n" in page
    assert "``--print-config``" in page


@pytest.mark.parametrize("module", [docstrings, fields, page_blocks], ids=lambda module: module.__name__)
def test_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_docstrings_are_rendered() -> None:
    text = """y = a * x_t | b, as ``code`` and :meth:`~statewise.SSD.step`.

    method:  "one", or
             "two"
    Shapes:  A, B: (n, *trailing)   u: (n,)
    Errors:  InputError, always.

    >>> 1 + 1
    2
    """
    lines = docstrings.render(docstrings.parse(inspect.cleandoc(text).splitlines()), lambda target: target)
    assert lines[0] == r"y = a \* x\_t \| b, as ``code`` and :py:obj:`step <statewise.SSD.step>`."
    assert "``method``" in lines
    assert r"   | ``A``, ``B``: (n, \*trailing)" in lines
    assert "   | ``u``: (n,)" in lines
    assert ":Errors:" in lines
    assert ">>> 1 + 1" in lines


# -- pages that are wrong --------------------------------------------------------------------------------------------


def run(tmp_path: Path, text: str) -> list[page_blocks.Result]:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    (tmp_path / "work").mkdir()
    return page_blocks.run(page, tmp_path / "work", tmp_path / "figures")


def test_an_output_that_drifts_is_an_error(tmp_path: Path) -> None:
    page = "```python\nprint('seven', 7)\n```\n\n```text\nseven ...\n```\n"
    assert run(tmp_path, page)[0].output == "seven 7\n"
    with pytest.raises(page_blocks.PageError, match=r"page.md:2: the page has another output than the code:\nseven 7"):
        page_blocks.run(_rewritten(tmp_path, "seven ...", "eight ..."), tmp_path / "work")


def _rewritten(tmp_path: Path, old: str, new: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(page.read_text("utf-8").replace(old, new), "utf-8")
    return page


def test_a_figure_needs_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw = (
        "```python\nimport matplotlib.pyplot as plt\n\nfigure, ax = plt.subplots()\nfigure.set_label('A line')\n```\n"
    )
    assert run(tmp_path, draw)[0].figures == [("page-2-1.svg", "A line")]
    assert (tmp_path / "figures" / "page-2-1.svg").exists()
    with pytest.raises(page_blocks.PageError, match="a figure has no words"):
        page_blocks.run(_rewritten(tmp_path, "A line", " "), tmp_path / "work")


def test_a_figure_of_ours_is_shown_once_it_has_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw = (
        "```python\nimport statewise as sw\n\nfigure = sw.plots.poles(sw.mass_spring_damper(1.0, 4.0, 0.5))\n```\n"
        "```python\nfigure.set_label('Two poles')\n```\n```python\nother = 1\n```\n"
    )
    first, second, third = run(tmp_path, draw)
    assert (first.figures, third.figures) == ([], [])
    assert [words for _, words in second.figures] == ["Two poles"]


def test_commands_run_where_a_page_says_so(tmp_path: Path) -> None:
    page = (
        f"{page_blocks.EXECUTES_COMMANDS}\n```console\n$ statewise --version\nstatewise {statewise.__version__}\n```\n"
    )
    run(tmp_path, page)
    with pytest.raises(page_blocks.PageError, match=r"page.md:3"):
        page_blocks.run(_rewritten(tmp_path, f"statewise {statewise.__version__}", "statewise 99"), tmp_path / "work")
    with pytest.raises(page_blocks.PageError, match=r"ended with 2: .*no such option|No such option"):
        page_blocks.run(_rewritten(tmp_path, "--version", "--nonsense"), tmp_path / "work")


def test_links_of_the_root_lead_to_pages() -> None:
    text = "[a](docs/glossary.md#b) [c](CONTRIBUTING.md) [d](https://x.org) [e](tests) `[f](g)`\n```\n[h](i)\n```\n"
    shown = sources.for_site(text, ROOT, DOCS, DOCS)
    assert shown == "[a](glossary.md#b) [c](contributing.md) [d](https://x.org) e `[f](g)`\n```\n[h](i)\n```\n"


def test_the_site_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://x.org">4</a>'
        '<script src="https://x.org/y.js"></script><img src="b.html">'
    )
    wrong, outside = site_check.problems(tmp_path)
    assert wrong == [
        "a.html: an image has no words: b.html",
        "a.html: b.html#gone: the page has no such anchor",
        "a.html: c.html leads nowhere",
        "a.html: https://x.org/y.js is loaded from elsewhere",
    ]
    assert outside == ["https://x.org", "https://x.org/y.js"]
