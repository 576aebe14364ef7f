"""Files that a model is asked about, and files of its answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from statewise.errors import DataError, InputError
from statewise.predict import Classes
from statewise.predict.files import growing_lines, read_arrays, writer


def answers(begin: int) -> Classes:
    logits = np.array([[0.0, 1.0], [2.0, 0.0]], np.float32)
    return Classes(row=np.arange(begin, begin + 2), names=("a, b", "ü"), logits=logits)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = tmp_path / f"answers.{ending}"
    with writer(path) as write:
        for begin in (0, 2):
            write(answers(begin))
    expected = [row for begin in (0, 2) for row in answers(begin).rows()]
    if ending == "csv":
        with path.open(newline="", encoding="utf-8") as file:
            found = [{k: v if k == "class" else float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    elif ending == "jsonl":
        found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(path).to_pylist()
    assert found == expected


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one of \.csv, \.jsonl, \.parquet"), writer(tmp_path / "answers.txt"):
        pass


def test_arrays(tmp_path: Path) -> None:
    x, lengths = np.arange(12.0).reshape(2, 3, 2), np.array([3, 2])
    np.savez(tmp_path / "x.npz", x=x, lengths=lengths)
    np.savez(tmp_path / "more.npz", test_x=x, test_lengths=lengths, train_x=x)
    np.savez(tmp_path / "one.npz", whatever=x)
    np.save(tmp_path / "x.npy", x)
    for name, array, ragged in (
        ("x.npz", None, True),
        ("more.npz", "test_x", True),
        ("more.npz", "train_x", False),
        ("one.npz", None, False),
        ("x.npy", None, False),
    ):
        found, steps = read_arrays(tmp_path / name, array)
        assert np.array_equal(found, x)
        assert np.array_equal(steps, lengths) if ragged else steps is None
    with pytest.raises(DataError, match="no array 'x'; choose one with --array: test_lengths, test_x, train_x"):
        read_arrays(tmp_path / "more.npz")
    with pytest.raises(DataError, match="there is no file"):
        read_arrays(tmp_path / "nothing.npz")


def test_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "growing.csv"
    path.write_text("1\n2\n3")
    later = ["4\n5\n", "6", None]

    def wait() -> bool:
        more = later.pop(0)
        if more is not None:
            with path.open("a") as file:
                file.write(more)
        return more is not None

    assert list(growing_lines(path, wait)) == ["1\n", "2\n", "34\n", "5\n", "6"]

    def cut() -> bool:
        path.write_text("")
        return True

    with pytest.raises(DataError, match="became shorter while it was read"):
        list(growing_lines(path, cut))
