"""Files of data that a model is asked about, and files of its answers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from statewise.errors import DataError, InputError, importing, reading
from statewise.files.arrays import read_npy, read_npz
from statewise.files.json_lines import json_line
from statewise.predict.answers import Answers

FORMATS = (".csv", ".jsonl", ".parquet")
Write = Callable[[Answers], None]


def read_arrays(path: Path, name: str | None = None) -> tuple[Any, Any]:
    """x and its lengths (or None) from an .npy or .npz file.

    name: of the array in an .npz; None: "x", or the only one there is. The lengths of "test_x" are "test_lengths"

    Errors:  DataError for a file that is not there or not this, and for a name that is not in it.
    """
    if path.suffix == ".npy":
        with reading(path):
            return read_npy(path.read_bytes(), str(path)), None
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    arrays = read_npz(path)
    if name is None:
        name = "x" if "x" in arrays or len(arrays) != 1 else next(iter(arrays))
    if name not in arrays:
        raise DataError(f"{path} has no array {name!r}; choose one with --array: {', '.join(sorted(arrays))}")
    return arrays[name], arrays.get(f"{name[:-1]}lengths") if name.endswith("x") else None


def growing_lines(path: Path, wait: Callable[[], bool]) -> Iterator[str]:
    """The lines of a file to which others are written, each when it is whole; ``wait()`` is called where there are no
    more for now, and says whether to continue.

    Errors:  DataError if the file becomes shorter.
    """
    with reading(path), path.open("rb") as file:
        begun = b""
        while True:
            part = file.readline()
            if part:
                begun += part
                if begun.endswith(b"\n"):
                    yield begun.decode("utf-8", "replace")
                    begun = b""
                continue
            if path.stat().st_size < file.tell():
                raise DataError(f"{path} became shorter while it was read; a file that is followed must only grow")
            if not wait():
                if begun:
                    yield begun.decode("utf-8", "replace")
                return


@contextmanager
def writer(path: Path) -> Iterator[Write]:
    """Writes answers into a new file as they come: .csv, .jsonl or .parquet by its name.

    Errors:  InputError for another name, and where pyarrow is missing for .parquet.
    """
    require_format(path)
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            yield lambda answers: file.writelines(json_line(row) + "\n" for row in answers.rows())
            return
        out, begun = csv.writer(file, lineterminator="\n"), False

        def write(answers: Answers) -> None:
            nonlocal begun
            columns = answers.columns()
            if not begun:
                out.writerow(columns)
                begun = True
            out.writerows(zip(*(column.tolist() for column in columns.values())))

        yield write


def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    file: Any = None

    def write(answers: Answers) -> None:
        nonlocal file
        table = pyarrow.table({name: pyarrow.array(column.tolist()) for name, column in answers.columns().items()})
        if file is None:
            file = pyarrow.parquet.ParquetWriter(path, table.schema)
        file.write_table(table)

    try:
        yield write
    finally:
        if file is not None:
            file.close()


def require_format(path: Path) -> None:
    """Checks before the work begins. Errors: InputError, as :func:`writer`."""
    if path.suffix not in FORMATS:
        raise InputError(
            f"{path}: the name says no format for answers; give a name that ends in one of {', '.join(FORMATS)}"
        )
    if path.suffix == ".parquet":
        with importing("pyarrow", "files", f"{path} (or write .csv or .jsonl): Parquet needs"):
            import pyarrow.parquet  # noqa: F401
