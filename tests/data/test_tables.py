"""Tables on a terminal: whatever its width, every number is there in one piece."""

from __future__ import annotations

import io

import pytest

from statewise.training.tables import print_result
from statewise.training.tasks.base import Table

ROWS = [("a model of some name (355M)", *(f"{36.5 + i:.1f}" for i in range(9)), "0.01 diverged, 0.001 98.5%, 1e-4 3%")]


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 300])
def test_no_number_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("a title", ("model", *(f"task {i}" for i in range(9)), "others"), ROWS)
    out = io.StringIO()
    print_result(table, out)
    words = out.getvalue().replace("│", " ").split()
    assert set(ROWS[0][1:10]) <= set(words)
    assert {"model", "(355M)", "diverged,", "98.5%,", "3%"} <= set(words)


def test_a_wide_terminal_has_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = io.StringIO()
    print_result(Table("a title", ("", "", ""), [row[:3] for row in ROWS]), out)
    assert out.getvalue().splitlines()[0].strip() == "a title"
    assert len(out.getvalue().splitlines()) == 4  # without a heading: the title, two lines of the frame, and the row
    assert ROWS[0][0] in out.getvalue()
    print_result(Table("of nothing", ("", ""), []), out)


def test_headings_stay_in_one_line_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, whole in (("80", True), ("30", False)):
        monkeypatch.setenv("COLUMNS", columns)
        out = io.StringIO()
        print_result(Table("a title", ("", "bits per byte", "the model needs"), [("xz -9", "1.5464", "")]), out)
        assert ("bits per byte" in out.getvalue()) is whole
        assert "1.5464" in out.getvalue()
