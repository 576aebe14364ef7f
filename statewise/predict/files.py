"""Files of data that a model is asked about, and files of its answers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from statewise.errors import DataError, InputError, excerpt, reading
from statewise.files.arrays import read_npy, read_npz
from statewise.predict.answers import Answers

FORMATS = (".csv", ".jsonl", ".parquet")
SEPARATORS = re.compile(r"[,;\s]+")
Write = Callable[[Answers], None]


def read_arrays(path: Path, name: str | None = None) -> tuple[Any, Any]:
    """x and its lengths (or None) from an .npy or .npz file, or a signal from a text file of numbers.

    name: of the array in an .npz; None: "x", or the only one there is. The lengths of "test_x" are "test_lengths"

    Errors:  DataError for a file that is not there or not this, and for a name that is not in it.
    """
    if path.suffix == ".npy":
        with reading(path):
            return read_npy(path.read_bytes(), str(path)), None
    if path.suffix != ".npz":
        with reading(path), path.open(encoding="utf-8-sig") as file:
            return [np.array(list(read_steps(file, str(path))))], None
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    arrays = read_npz(path)
    if name is None:
        name = "x" if "x" in arrays or len(arrays) != 1 else next(iter(arrays))
    if name not in arrays:
        raise DataError(f"{path} has no array {name!r}; say which by --array: it has {', '.join(sorted(arrays))}")
    return arrays[name], arrays.get(f"{name[:-1]}lengths") if name.endswith("x") else None


def read_steps(lines: Iterable[str], where: str) -> Iterator[list[float]]:
    """The numbers of each line, separated by commas, semicolons or blanks; a first line of names is passed over.

    Errors:  DataError with the line, for what is no number, and where lines have unlike many.
    """
    n_numbers = None
    for number, line in zip(count(1), lines):
        cells = SEPARATORS.split(line.strip())
        if cells == [""]:
            continue
        try:
            step = [float(cell) for cell in cells]
        except ValueError:
            if n_numbers is None and not any(map(_is_number, cells)):
                continue
            raise DataError(f"{where}, line {number}: {excerpt(line.strip())} is no step of numbers") from None
        if n_numbers not in (None, len(step)):
            raise DataError(f"{where}, line {number}, has {len(step)} numbers; those before it have {n_numbers}")
        n_numbers = len(step)
        yield step


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_texts(lines: Iterable[str], where: str) -> list[str]:
    """A text of each line; of a .jsonl file the strings, or what its objects have under "text". Blank lines are passed
    over.
    """
    texts = [line.rstrip("\r\n") for line in lines]
    if not where.endswith(".jsonl"):
        return [text for text in texts if text.strip()]
    found = []
    for number, text in enumerate(texts, 1):
        try:
            value = json.loads(text) if text.strip() else None
        except ValueError:
            value = 0
        value = value.get("text", 0) if isinstance(value, dict) else value
        if not (value is None or isinstance(value, str)):
            raise DataError(f'{where}, line {number}: {excerpt(text)} is neither a string nor an object with a "text"')
        if value:
            found.append(value)
    return found


def growing_lines(path: Path, wait: Callable[[], bool]) -> Iterator[str]:
    """The lines of a file to which others are written, each when it is whole; ``wait()`` is called where there are no
    more for now, and says whether to go on.

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
                raise DataError(f"{path} became shorter while it was read; a file that is followed only grows")
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
            yield lambda answers: file.writelines(json.dumps(row) + "\n" for row in answers.rows())
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
    """Told before the work. Errors: InputError, as :func:`writer`."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: answers are written as {', '.join(FORMATS)}; give a name that ends so")
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise InputError(
                f'{path}: Parquet needs pyarrow, which is not installed; run: pip install "statewise[parquet]", or '
                "write .csv or .jsonl"
            ) from error
