"""Tables on a terminal: whatever its width, every number is there in one piece."""

from __future__ import annotations

import io

import pytest

from statewise.train.tables import as_rich, print_table
from statewise.train.tasks.base import Table

ROWS = [("a model of some name (355M)", *(f"{36.5 + i:.1f}" for i in range(9)), "0.01 diverged, 0.001 98.5%, 1e-4 3%")]


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 300])
def test_no_number_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("a title", ("model", *(f"task {i}" for i in range(9)), "others"), ROWS)
    out = io.StringIO()
    print_table(as_rich(table), out)
    words = out.getvalue().replace("│", " ").split()
    assert set(ROWS[0][1:10]) <= set(words)
    assert {"model", "(355M)", "diverged,", "98.5%,", "3%"} <= set(words)


def test_a_wide_terminal_has_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = io.StringIO()
    print_table(as_rich(Table("a title", ("", "", ""), [row[:3] for row in ROWS])), out)
    assert out.getvalue().splitlines()[0].strip() == "a title"
    assert len(out.getvalue().splitlines()) == 4  # without a heading: the title, two lines of the frame, and the row
    assert ROWS[0][0] in out.getvalue()
    print_table(as_rich(Table("of nothing", ("", ""), [])), out)
