"""Tables of every format give the same columns, and wrong ones are refused in a line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import refused

from statewise.files.tables import Table, is_numeric, is_text, read_table

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")


def frame() -> Any:
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {"name": ["None", "NA", 'a "b"\nc', "ü;,"], "n": [1, 2, 3, 2**62], "x": rng.normal(size=4), "ok": [True] * 4}
    )


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "a.csv": lambda df, path: df.to_csv(path, index=False),
    "b.csv": lambda df, path: df.to_csv(path),  # with pandas' index
    "c.csv": lambda df, path: df.to_csv(path, index=False, sep=";", decimal=","),
    "d.tsv": lambda df, path: df.to_csv(path, index=False, sep="\t"),
    "e.csv": lambda df, path: df.to_csv(path, index=False, sep="|", encoding="utf-8-sig", lineterminator="\r\n"),
    "f.csv.gz": lambda df, path: df.to_csv(path, index=False),
    "g.csv.zst": lambda df, path: df.to_csv(path, index=False),
    "h.parquet": lambda df, path: df.to_parquet(path),
    "i.parquet": lambda df, path: df.set_index("name", drop=False).rename_axis(None).to_parquet(path),
    "j.jsonl": lambda df, path: df.to_json(path, orient="records", lines=True, double_precision=15),
    "k.jsonl.gz": lambda df, path: df.to_json(path, orient="records", lines=True, double_precision=15),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    expected, path = frame(), tmp_path / name
    WRITERS[name](expected, path)
    table = read_table(path, text=["name"])
    assert list(table.columns) == ["name", "n", "x", "ok"]
    assert len(table) == 4
    for column in table.columns:
        if column == "x" and "jsonl" in name:  # pandas writes 15 digits
            np.testing.assert_allclose(table.columns[column], expected[column], rtol=1e-12)
        else:
            assert table.columns[column].tolist() == expected[column].tolist()
    assert is_text(table.columns["name"])
    assert is_numeric(table.columns["x"])
    few = read_table(path, columns=["x", "other"])
    assert list(few.columns) == ["x"]
    assert "no column 'y' (a step); its columns are: name, n, x, ok" in refused(lambda: few.column("y", "a step"))
    none = refused(lambda: read_table(path, columns=["y", "z"]))
    assert none.endswith(f"{name} has none of the columns y, z; its columns are: name, n, x, ok")
    assert "no column 'kind' (data.label_field); its columns are: name, n, x, ok" in refused(
        lambda: table.column("kind", "data.label_field")
    )


def test_gaps_and_where_rows_stand(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b,c\n1,NA,x\n\n2,3.5,"y\nz"\n3,-,\n')
    table = read_table(tmp_path / "a.csv", text=["c"])
    np.testing.assert_array_equal(table.columns["b"], [np.nan, 3.5, np.nan])
    assert table.columns["c"].tolist() == ["x", "y\nz", None]
    assert [table.where(i) for i in range(3)] == ["line 2", "line 5", "line 6"]
    assert table.at(0) == f"{tmp_path / 'a.csv'}, line 2"
    (tmp_path / "a.jsonl").write_text('{"a": 1, "s": [1, 2.5]}\n\n{"b": "x", "s": [[1], [null]]}\n{"a": null}\n')
    table = read_table(tmp_path / "a.jsonl")
    np.testing.assert_array_equal(table.columns["a"], [1, np.nan, np.nan])
    assert table.columns["b"].tolist() == [None, "x", None]
    first, second, none = table.columns["s"]
    assert (first.tolist(), second.shape, none) == ([1, 2.5], (2, 1), None)
    assert table.where(2) == "line 4"


def test_lists_times_and_categories_of_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet

    columns = {
        "s": pyarrow.array([[1.5, None], [2.0]], pyarrow.list_(pyarrow.float32())),
        "m": pyarrow.array([[[1, 2], [3, 4]], [[5, 6]]]),
        "t": pyarrow.array(np.array(["2024-01-01", "2024-01-02"], "datetime64[ns]")),
        "d": pyarrow.array(np.array(["2024-01-01", "2024-01-02"], "datetime64[D]")),
        "k": pyarrow.array(["a", "b"]).dictionary_encode(),
        "n": pyarrow.array([1, None]),
        "f": pyarrow.array(np.array([1, 2], np.float32)),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    np.testing.assert_array_equal(table.columns["s"][0], np.array([1.5, np.nan], np.float32))
    assert table.columns["m"][0].shape == (2, 2)
    assert table.columns["t"].dtype.kind == table.columns["d"].dtype.kind == "M"
    assert table.columns["k"].tolist() == ["a", "b"]
    np.testing.assert_array_equal(table.columns["n"], [1, np.nan])
    assert table.columns["f"].dtype == np.float32
    assert table.where(1) == "row 2"


def test_blanks_and_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("left right\n1 2.5\n-3 4e2\n")
    assert read_table(tmp_path / "a.txt").columns["right"].tolist() == [2.5, 400]
    (tmp_path / "b.csv").write_text("a;b\n1,250;2\n;3\n")
    np.testing.assert_array_equal(read_table(tmp_path / "b.csv").columns["a"], [1.25, np.nan])
    (tmp_path / "c.csv").write_text("label\nspam\n")
    assert read_table(tmp_path / "c.csv").columns["label"].tolist() == ["spam"]
    (tmp_path / "d.csv").write_text("0,1,label\n5,6,7\n")
    assert list(read_table(tmp_path / "d.csv").columns) == ["0", "1", "label"]


WRONG: dict[str, tuple[str, str | bytes, str]] = {
    "nothing": ("a.csv", "", "is empty"),
    "only names": ("a.csv", "a,b\n", "has no rows"),
    "JSON lines named .csv": ("a.csv", '{"a": 1}\n{"a": 2}\n', "rename it to end in .jsonl"),
    "CSV named .jsonl": ("a.jsonl", "a,b\n1,2\n3,4\n", "rename it to end in .csv"),
    "Parquet named .csv": ("a.csv", b"PAR1" + bytes(100), "is Parquet; rename it to end in .parquet"),
    "CSV named .parquet": ("a.parquet", "a,b\n1,2\n3,4\n", "rename it to end in .csv"),
    "gzip named .csv": ("a.csv", gzip.compress(b"a,b\n1,2\n"), "compressed by gzip; rename it to end in .gz"),
    "CSV named .gz": ("a.csv.gz", "a,b\n1,2\n", "rename it without .gz"),
    "a picture": ("a", b"\x89PNG\r\n\x1a\n" + bytes(30), "is a picture; expected a table"),
    "Excel": ("a.csv", b"\xd0\xcf\x11\xe0" + bytes(30), "save the sheet as CSV"),
    "UTF-16": ("a.csv", "a,b\n1,2\n".encode("utf-16"), "save it as UTF-8"),
    "latin-1": ("a.csv", "a,b\n1,é\n".encode("latin-1"), "is not in UTF-8"),
    "too many cells": ("a.csv", "a,b\n1,2\n1,2,3\n", "line 3, has 3 cells; the first line names 2 columns"),
    "more cells than names": ("a.csv", "a,b\nr1,1,2\nr2,1,2\n", "more cells"),
    "a name twice": ("a.csv", "a,a\n1,2\n", "each column a different name, got a, a"),
    "no name": ("a.csv", "a,,c\n1,2,3\n", "each column a different name"),
    "no name at first": ("a.csv", ",b\n5,2\n7,3\n", "its first column has no name"),
    "no names": ("a.csv", "5.1,3.5\n4.9,3.0\n", "but holds the numbers 5.1, 3.5; put names above them"),
    "thousands": ("a.tsv", "a\tb\n1,250\t2\n1,300\t3\n", "column 'a': '1,250' may use its comma for thousands"),
    "an open quote": ("a.csv", 'a,b\n1,"2\n3,4\n', "cannot be read as a table"),
    "a NUL byte": ("a.csv", b"a,b\n" + b"1,2\n" * 3000 + b"1,\0\n", "has a NUL byte"),
    "a bomb of short lines": ("a.csv", ",".join(map(str, range(20_000))) + "\n" + "1\n" * 20_000, "expands to"),
    "no JSON": ("a.jsonl", '{"a": 1}\n{"a": 2}\n{"a": 2\n', "line 3 is not JSON"),
    "a key twice": ("a.jsonl", '{"a": 1, "b": 2}\n{"a": 1, "a": 2}\n', "the key 'a' is there twice"),
    "deep JSON": ("a.jsonl", '{"a": 1}\n{"b": ' + "[" * 100_000 + "\n", "line 2 is not JSON"),
    "no objects": ("a.jsonl", "[1]\n[2]\n", "line 1: [1] is not an object"),
    "one JSON": ("a.jsonl", '[\n{"a": 1},\n{"a": 2}\n]\n', "write it as JSON lines"),
    "cut Parquet": ("a.parquet", b"PAR1" + bytes(40) + b"PAR1", "cannot read"),
    "cut gzip": ("a.csv.gz", gzip.compress(b"a,b\n" * 5000)[:-9], "cannot read"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tables_are_refused_in_a_line(tmp_path: Path, what: str) -> None:
    name, content, said = WRONG[what]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert said in refused(lambda: read_table(tmp_path / name))


def test_parquet_that_claims_too_much(tmp_path: Path) -> None:
    import pyarrow.parquet

    zeros = pyarrow.array(np.zeros(10_000_000, np.int64))
    pyarrow.parquet.write_table(pyarrow.table({"a": zeros}), tmp_path / "a.parquet", compression="zstd")
    assert "expands to" in refused(lambda: read_table(tmp_path / "a.parquet"))


def test_a_table_is_a_table() -> None:
    assert len(Table(Path("a"), "table", {"a": np.zeros(3)}, str, ("a",))) == 3
