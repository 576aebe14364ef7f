"""Notebooks: files that Jupyter opens, without outputs, small, in their order. test_docs.py runs their code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from places import ROOT
from site_extensions import navigation, notebooks, page_blocks

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 20_000  # bytes: text and code, no outputs


def test_they_are_in_the_order_of_the_site() -> None:
    names = [f"notebooks/{path.stem}" for path in NOTEBOOKS]
    assert names == list(navigation.SECTIONS["Notebooks"])
    assert [int(path.name[:2]) for path in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_file_that_jupyter_opens(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    found = json.loads(path.read_text("utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            assert set(cell) == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
            assert cell["outputs"] == []  # nobody has to look whether they are still true
            assert cell["execution_count"] is None
        else:
            assert set(cell) == {"cell_type", "id", "metadata", "source"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_can_be_read_in_ten_minutes(path: Path) -> None:
    """At 150 words a minute, code counted as words: these have to be understood."""
    words = sum(len(source.split()) for _, source in notebooks.cells(path.read_text("utf-8")))
    assert 400 < words < 1500


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_figures_are_shown_by_jupyter_and_have_words(path: Path) -> None:
    """A cell that draws ends with the figure, and says what is to be seen."""
    code = [source for kind, source in notebooks.cells(path.read_text("utf-8")) if kind == "code"]
    drawing = [source for source in code if "figure = " in source]
    assert len(drawing) >= 2
    for source in drawing:
        assert "figure.set_label(" in source
        assert source.rstrip().splitlines()[-1] == "figure"


def test_as_a_page() -> None:
    text = notebooks.as_markdown(NOTEBOOKS[0].read_text("utf-8"), NOTEBOOKS[0].name)
    assert text.startswith("# Looking things up\n\n{download}`This page as a notebook <01-lookup.ipynb>`\n\n")
    assert text == page_blocks.text_of(NOTEBOOKS[0])
    assert not any(block.text.rstrip().endswith("\nfigure") for block in page_blocks.blocks(text))


def test_a_figure_of_ours_has_a_picture_for_notebooks() -> None:
    pytest.importorskip("matplotlib")
    import statewise as sw

    assert sw.plots.poles(sw.mass_spring_damper(1.0, 4.0, 0.5))._repr_png_().startswith(b"\x89PNG")
