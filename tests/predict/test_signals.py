"""Signals as text: no step is read otherwise than it was meant, and what may be meant in two ways is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import statewise as sw
from statewise.errors import DataError
from statewise.models.encoder import SequenceModelConfig
from statewise.models.file_input import FilesConfig
from statewise.models.raw_input import InputConfig
from statewise.predict.signals import read_signal, read_steps

Steps = list[list[float]]


def model(d_input: int = 2, **files: Any) -> SequenceModelConfig:
    """A config that reads so many numbers a step, from arrays or from such files."""
    raw = InputConfig(files=FilesConfig(**files)) if files else None
    layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    return sw.SequenceClassifierConfig(n_classes=2, d_input=d_input, d_model=16, layers=layers, input=raw)


TABLE = model(kind="long table", columns=("a", "b"), row_field="id", time_field="time")
COUNTED = model(kind="long table", columns=("0", "1"), row_field="id")
WIDE = model(1, kind="wide table", columns=("t0", "t1", "t2"))
ONE, TWO, THREE = model(1), model(), model(3)

READ: dict[str, tuple[SequenceModelConfig, str, Steps]] = {
    "no names": (TWO, "1,-2\n3,4\n", [[1, -2], [3, 4]]),
    "no names, points": (TWO, "1.5,2\n3,4\n", [[1.5, 2], [3, 4]]),
    "no names, blanks behind commas": (TWO, "1, 5\n3 ,4\n", [[1, 5], [3, 4]]),
    "no names, decimal commas": (TWO, "1000,5;999,2\n3;4\n", [[1000.5, 999.2], [3, 4]]),
    "no names, tabs": (TWO, "1,5\t2\n3\t-4e1\n", [[1.5, 2], [3, -40]]),
    "no names, blanks": (TWO, " 1,5  2,25\n\n3 4 \n", [[1.5, 2.25], [3, 4]]),
    "no names, bars": (TWO, "1|2.5\n3|4\n", [[1, 2.5], [3, 4]]),
    "three whole numbers": (THREE, "512,490,700\n1,2,3\n", [[512, 490, 700], [1, 2, 3]]),
    "one number": (ONE, "1\n.5\n-2.\n+1E3\n", [[1], [0.5], [-2], [1000]]),
    "one with a decimal comma, by its zero": (ONE, "0,05\n1,5\n", [[0.05], [1.5]]),
    "names": (TWO, "left,right\n1,5\n3,4\n", [[1, 5], [3, 4]]),
    "names with blanks, quotes and a mark": (TWO, '\ufeff"Temp; left";"Temp right"\n1,5;2\n', [[1.5, 2]]),
    "names of many marks": (TWO, "a,b;c,d\n1,5;2,5\n", [[1.5, 2.5]]),
    "names as numpy writes them": (TWO, "# left right\n1 2\n", [[1, 2]]),
    "names that Python takes for numbers": (TWO, "2024_01,2024_02\n1,2\n", [[1, 2]]),
    "one name of two words": (ONE, "sensor 1\n0.5\n1\n", [[0.5], [1]]),
    "one name, decimal commas": (ONE, "wert\n0,126\n1,500\n", [[0.126], [1.5]]),
    "one name, whole numbers": (ONE, "value\n1500\n", [[1500]]),
    "a table's columns": (TABLE, "a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
    "in another order": (TABLE, "b,a\n1,2\n3,4\n", [[2, 1], [4, 3]]),
    "among others": (TABLE, 'note,b,time,a\n"x, y",1,0,2\n?,3,1.5,4\n', [[2, 1], [4, 3]]),
    "with times, of a sequence": (TABLE, "id;time;b;a\ns;2024-01-01;1,5;2\ns;2024-01-02;3;4\n", [[2, 1.5], [4, 3]]),
    "without names, in their order": (TABLE, "1,2.5\n3,4\n", [[1, 2.5], [3, 4]]),
    "names that are numbers": (COUNTED, "id,1,0\ns,1,2\n", [[2, 1]]),
    "of a wide table's model": (WIDE, "anything\n1.5\n", [[1.5]]),
}  # fmt: skip


@pytest.mark.parametrize("what", READ)
def test_a_file_and_a_stream_are_read_alike(tmp_path: Path, what: str) -> None:
    config, text, expected = READ[what]
    (tmp_path / "a.csv").write_text(text, "utf-8")
    assert read_signal(tmp_path / "a.csv", config)[0].tolist() == expected
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_signal(tmp_path / "a.csv.gz", config)[0].tolist() == expected
    assert [step for step, _ in read_steps(text.splitlines(keepends=True), "here", config)] == expected


TWICE = "may be one number with decimals, or two; write decimals with a point, or put semicolons between numbers"
REFUSED: dict[str, tuple[SequenceModelConfig, str, str]] = {
    "decimals or two numbers": (TWO, "0,126\n1,5\n", f"line 1: '0,126' {TWICE}"),
    "decimals or two numbers, of one": (ONE, "0,126\n1,5\n", f"line 1: '0,126' {TWICE}"),
    "decimals or two numbers, of a table": (TABLE, "1,5\n2,7\n", f"line 1: '1,5' {TWICE}"),
    "one name with a comma": (TWO, "Wert, in Grad\n0,126\n", f"here: 'Wert, in Grad' {TWICE}"),
    "decimals under one name": (TWO, "wert\n0,126\n", "names 1 column; give only those that this model reads"),
    "thousands or decimals": (ONE, "wert\n1,500\n2,750\n", "line 2: '1,500' may have thousands or decimals"),
    "two marks": (TWO, "1,5;2.5\n", "line 1: '2.5' has a different decimal mark from the others"),
    "thousands with a point": (TWO, "1.234,5;2\n", "is not a step of numbers, because of '1.234,5'"),
    "fewer": (TWO, "1,2.5\n3\n", "line 2: '3' has 1 cell; expected 2"),
    "more": (TWO, "1,2,3\n", "line 1: '1,2,3' is 3 numbers; this model reads 2 numbers a step"),
    "no number": (TWO, "a,b\n1,2\n1,c\n", "line 3: '1,c' is not a step of numbers, because of 'c'"),
    "no number at first": (TWO, "1,c\n2,3\n", "'1,c', is neither a step of numbers nor a line of names"),
    "a true minus at first": (TWO, "−1,2.5\n2,3\n", "'−1,2.5', is neither a step of numbers nor a line of names"),
    "thousands at first": (TWO, "1_000,2_000\n2,3\n", "'1_000,2_000', is neither a step of numbers nor a line of nam"),
    "a gap": (TWO, "a,b\n1,\n", "line 2: '1,' is not a step of numbers, because of ''"),
    "a column lacks": (TABLE, "a,c\n1,2\n", "'a,c', has no column 'b'; this model reads 2 numbers a step: a, b"),
    "no column is there": (TABLE, "x,y\n1,2\n", "'x,y', has no column 'a'"),
    "a column twice": (TABLE, "a,b,a\n1,2,3\n", "'a,b,a', names 'a' twice"),
    "more, without names": (TABLE, "1,2,3\n", "is 3 numbers, and no names are above it; this model reads 2"),
    "more names than are known": (TWO, "time,a,b\n0,1,2\n", "names 3 columns; give only those that this model reads"),
    "two sequences": (TABLE, "id,a,b\ns1,1,2\ns2,3,4\n", "line 3: the step is of 's2', and those before it are of"),
    "back in time": (TABLE, "time,a,b\n1,1,2\n0,3,4\n", "line 3: its time, '0', is not after the one before"),
    "no time": (TABLE, "time,a,b\nsoon,1,2\n", "line 2: its time is 'soon', neither an ISO date (2024-03-01) nor"),
    "names or numbers": (COUNTED, "0,1\n5,6\n", "line 1: '0,1' may be names of columns, or a step"),
    "names of pandas": (TWO, "0;1\n5.5;6\n", "line 1: '0;1' may be names of columns, or a step"),
    "one name of pandas": (ONE, "0\n\n0.5\n", "line 1: '0' may be names of columns, or a step"),
    "a sequence a row": (WIDE, "t0,t1,t2\n1,2,3\n", "1 number a step (give a table with a sequence in each row as"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_may_be_meant_otherwise_is_refused(tmp_path: Path, what: str) -> None:
    config, text, said = REFUSED[what]
    (tmp_path / "here").write_text(text, "utf-8")
    for read in (
        lambda: read_signal(tmp_path / "here", config),
        lambda: list(read_steps(text.splitlines(), "here", config)),
    ):
        with pytest.raises(DataError) as caught:
            read()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_says_by_all_its_lines_how_numbers_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,5\n2,7\n3,05\n")
    assert read_signal(tmp_path / "a.csv", ONE)[0].tolist() == [[1.5], [2.7], [3.05]]
    (tmp_path / "b.csv").write_text("1,5\n2,-7\n")
    assert read_signal(tmp_path / "b.csv", TWO)[0].tolist() == [[1, 5], [2, -7]]
    (tmp_path / "c.csv").write_text("wert\n1,500\n1,25\n")
    assert read_signal(tmp_path / "c.csv", ONE)[0].tolist() == [[1.5], [1.25]]
    for name in "abc":  # who sees the first line alone cannot tell
        config = ONE if name != "b" else TWO
        with pytest.raises(DataError, match=r"may (be one number with|have thousands or) decimals"):
            list(read_steps((tmp_path / f"{name}.csv").read_text().splitlines(), "here", config))


def test_what_is_no_text_or_has_no_step(tmp_path: Path) -> None:
    for data, said in (
        (b"gr\xf6\xdfe\n1\n", "is not in UTF-8"),
        (b"a,b\n\n", "holds no numbers; expected a step on each line"),
    ):
        (tmp_path / "a.csv").write_bytes(data)
        with pytest.raises(DataError, match=said):
            read_signal(tmp_path / "a.csv", TWO)


def test_what_is_no_text_as_a_stream() -> None:
    for data in (bytes(range(256)) * 3, b"a,b\n1\r2,\r3\n", b'1,"' + b"2" * 200_000):
        for config in (ONE, TWO, TABLE, WIDE):
            with pytest.raises(DataError):
                list(read_steps(data.decode("utf-8", "replace").split("\n"), "here", config))


@pytest.mark.parametrize("separator", [";", "\t", "|", ",", " "])
@pytest.mark.parametrize("config", [ONE, TWO, TABLE])
def test_random_signals_are_read_as_they_were_written_or_refused(
    tmp_path: Path, separator: str, config: SequenceModelConfig
) -> None:
    """With and without names, of whole numbers and others, with both decimal marks: never another number."""
    rng = np.random.default_rng(0)
    n_refused = 0
    for i in range(60):
        digits, mark, n = int(rng.integers(0, 4)), ".,"[i % 2], config.d_input or 1
        values = np.round(rng.normal(size=(5, n)) * 10.0 ** rng.integers(0, 4), digits)
        rows = [separator.join(f"{v:.{digits}f}".replace(".", mark) for v in row) for row in values]
        if i % 3:
            rows.insert(0, separator.join(("a", "b")[:n]))
        (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
        for is_file in (True, False):
            try:
                if is_file:
                    found = read_signal(tmp_path / "a.csv", config)[0].tolist()
                else:
                    found = [step for step, _ in read_steps(rows, "here", config)]
            except DataError:
                n_refused += 1
                continue
            assert found == values.tolist(), rows
    assert n_refused < 60
