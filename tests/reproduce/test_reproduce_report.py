"""What reproductions are made of: time and memory side by side, JSON, pages, plots, and what is shown."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise.errors import DataError, InputError
from statewise.reproduce import PLACES, Bar
from statewise.reproduce.files import compact, finite
from statewise.reproduce.hardware import environment, require_memory
from statewise.reproduce.measure import milliseconds, peak_bytes, time_side_by_side
from statewise.reproduce.page import PAGES, cell, fill
from statewise.reproduce.progress import JsonWatcher, PartReporter, TerminalWatcher, make_watcher
from statewise.reproduce.report import Curve, Panel, Report, curves, drawn, markdown
from statewise.training.tasks import Table

needs_plot = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")


class TestMeasure:
    def test_peak_of_known_allocations(self) -> None:
        before = torch.ones(1000)

        def action() -> None:
            a = torch.empty(1000)  # 4,000 bytes
            b = torch.empty(500)  # 2,000
            del a
            c = torch.empty(750)  # 3,000
            del b, c

        assert peak_bytes(action) == 6000
        assert peak_bytes(lambda: before.sigmoid_()) == 0

    def test_freeing_what_was_there_is_no_gain(self) -> None:
        kept = [torch.ones(10_000)]

        def action() -> None:
            kept.clear()
            kept.append(torch.empty(500))

        assert peak_bytes(action) == 2000

    def test_temporaries_inside_operators_and_of_the_backward_pass(self) -> None:
        x = torch.randn(64, 64, requires_grad=True)
        assert peak_bytes(lambda: torch.linalg.solve(torch.eye(64), x.detach())) >= 3 * 4 * 64 * 64
        y = (x.exp() * 2).sum()
        assert peak_bytes(y.backward) >= 2 * 4 * 64 * 64

    @pytest.mark.cuda
    def test_peak_on_cuda(self) -> None:
        device = torch.device("cuda")
        assert peak_bytes(lambda: torch.empty(1 << 20, device=device), device) == 4 << 20

    def test_side_by_side(self) -> None:
        order: list[str] = []
        actions = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
        told: list[tuple[int, int]] = []
        seconds = time_side_by_side(
            actions, 2, repeats={"b": 2}, progress=lambda done, total: told.append((done, total))
        )
        assert order == ["a", "b", "b", "b", "b", "a"]
        assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 4}
        assert told == [(1, 2), (2, 2)]
        assert milliseconds([0.003, 0.001, 0.002]) == pytest.approx(2.0)
        with pytest.raises(InputError, match="nothing to measure"):
            time_side_by_side(actions, 0)

    def test_memory_is_told_before(self) -> None:
        require_memory(1, "this", "do that")
        if os.path.exists("/proc/meminfo"):
            with pytest.raises(DataError, match=r"this needs about 1,?000,?000\.0 GB .* do that"):
                require_memory(10**15, "this", "do that")


def test_finite() -> None:
    assert finite({1: [float("-inf"), "nan", True, None]}) == {"1": [None, "nan", True, None]}


def test_json_has_a_record_in_a_line() -> None:
    row = {"name": "x" * 50, "course": [i / 8 for i in range(9)], "pairs": [[1, 2], [3, 4]]}
    data: dict[str, Any] = {"rows": [row] * 4, "n": {}}
    text = compact(data)
    assert json.loads(text) == data
    assert [line.count("course") for line in text.splitlines()] == [0, 0, 1, 1, 1, 1, 0, 0, 0]
    assert compact([[1, 2], [3, [4]], [], None]) == "[[1, 2], [3, [4]], [], null]"


class TestReport:
    def test_a_page_is_filled_in(self) -> None:
        """Tables once and several times, a list of columns, what is conditional, and what is a list."""
        text = """
# Of {n}

One,
two.

[no] Not this.

## A table of {n}

| | double | *names |
| {i} | {twice} | *each:.1f |

a note

*notes

## {name}

| x |
| {x:.1p} % |

- One of {n}.
- [two] Two,
  and
  more.
- [not two] Three.
- [a-b in names] Four.
- [y in names] Five.
- [not y in names] Six.
"""
        rows = [{"i": 1, "twice": 2, "each": [0.5, "diverged"]}, {"i": 2, "twice": None, "each": [None, 1]}]
        several = [({"name": "a"}, [{"x": 0.25}]), ({"name": "b"}, [{"x": None}, {"x": "diverged"}])]
        values = {"n": 4, "two": "2", "names": ["y", "z"], "notes": ["b", "c"], "no": ""}
        report = fill(text, values, rows, several, figures={"n": 4})
        assert (report.title, report.setting, report.figures) == ("Of 4", "One, two.", {"n": 4})
        assert report.differences == ["One of 4.", "Two, and more.", "Five."]
        assert list(report.tables) == [
            Table(
                "A table of 4",
                ("", "double", "y", "z"),
                [("1", "2", "0.5", "diverged"), ("2", "-", "-", "1.0")],
                ("a note", "b", "c"),
            ),
            Table("a", ("x",), [("25.0 %",)]),
            Table("b", ("x",), [("-",), ("diverged %",)]),
        ]

    def test_cells(self) -> None:
        row = {"a": {"b": 2}, "none": None, "many": [1.0, None, "diverged"]}
        assert cell("{a[b]:,}x", row) == "2x"
        assert [cell(text, row) for text in ("{a[c]}x", "{none:.1f}", "{none[0]}")] == ["-", "-", "-"]
        assert cell("{many:.1f}", row) == "1.0 - diverged"
        with pytest.raises(KeyError, match="wrong"):  # a mistake, not a value that is not there
            cell("{wrong[0]}", row)

    @pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
    def test_each_page_belongs_to_a_claim(self, page: Path) -> None:
        assert page.stem == "trained-task" or page.stem in PLACES

    @needs_plot
    def test_panels(self, tmp_path: Path) -> None:
        bars = {"yerr": ([0.1, 0.1], [0.2, 0.2])}
        lines = [
            Curve([1, 2], [3, 4], "a", {"color": "C1"}),
            Curve([1, 2], [5, 6], "a"),
            Curve([1, 2], [1, 2], "b", bars),
        ]
        panel = Panel(curves=lines, x="x", y="y", ticks=(1, 2), log="y", levels=[(2.0, {"label": "l"})])
        plot = curves("p", "title", panel, Panel(curves=[]), width=4.0)
        plot.write(tmp_path / "p.png")
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
        from matplotlib.figure import Figure

        axes = Figure().subplots()
        panel.draw(axes)
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "l", "b"]
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_xticks().tolist()) == ("log", "log", [1, 2])

    @needs_plot
    @pytest.mark.parametrize(("n_panels", "pixels"), [(4, (4.0, 2.0)), (5, (4.0, 4.0)), (7, (4.0, 6.0))])
    def test_more_than_four_panels_stand_in_rows(
        self, n_panels: int, pixels: tuple[float, float], tmp_path: Path
    ) -> None:
        from matplotlib.image import imread

        panels = [Panel(curves=[Curve([1, 2], [3, 4])])] * n_panels
        curves("p", "title", *panels, width=4.0, height=2.0).write(tmp_path / "p.png")
        height, width = imread(tmp_path / "p.png").shape[:2]
        assert width / height == pytest.approx(pixels[0] / pixels[1], rel=0.01)

    def test_bars(self) -> None:
        assert Bar(what="x", ours=2.0, bar=2.0).holds
        assert not Bar(what="x", ours=2.0, bar=2.0, beyond=True).holds
        assert str(Bar(what="x", ours=1.0, bar=30.0, unit="x")) == "MISSED: x: 1x, at least 30x was asked"
        lost = Bar(what="x", ours=None, bar=0.0)
        assert not lost.holds
        assert str(lost) == "MISSED: x: diverged, at least 0 was asked"

    def test_markdown(self) -> None:
        table = Table("t", ("", "ours"), [("a|b", "1")], ("a note",))
        report = Report(title="T", setting="s", tables=[table], bars=[Bar(what="x", ours=2, bar=1)])
        record = {"date": "today", "seconds": 1.0, "environments": [environment()], "settings": {}}
        page = markdown(report, record, [drawn("p", "a plot", lambda figure: None)])
        for line in ("|   | ours |", "| --- | ---: |", "| a/b | 1 |", "a note", "- reached: x", "![a plot](p.png)"):
            assert line in page


class TestWatchers:
    def test_a_part_that_does_not_train_tells_its_progress_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reporter of training needs its records; a part without them has a bar of its own."""
        stream = StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        watcher = make_watcher(stream)
        assert isinstance(watcher, TerminalWatcher)
        reporter = PartReporter(watcher, "asked")
        reporter.progress(0.5, {})
        assert set(watcher.rows) == {"asked"}
        reporter.event({"kind": "warning", "message": "mind the gap"})
        reporter.close()
        assert "mind the gap" in stream.getvalue()

    def test_json(self) -> None:
        stream = StringIO()
        watcher = make_watcher(stream)
        assert isinstance(watcher, JsonWatcher)
        watcher.event({"kind": "part", "part": "a"})
        watcher.progress("a", 0.5)
        watcher.close()
        assert json.loads(stream.getvalue()) == {"kind": "part", "part": "a"}

    def test_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        watcher = make_watcher(stream)
        assert isinstance(watcher, TerminalWatcher)
        watcher.event({"kind": "start", "message": "begins"})
        watcher.progress("a part", 0.5)
        watcher.event({"kind": "part", "part": "a part", "found": False, "seconds": 1.0, "done": 1, "of": 2})
        watcher.event({"kind": "part", "part": "b", "found": True, "seconds": 1.0, "done": 2, "of": 2})
        assert watcher.bar is None
        for expected in ("begins", "1 of 2  a part: 1.0 s", "2 of 2  b: found done"):
            assert expected in stream.getvalue()
