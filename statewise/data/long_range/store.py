"""Rows on disk: made once from files or drawn, then read through a memory map.

A store is a folder named by what it was made from::

    values.bin   the rows, one after the other, unsigned 8 or 16 bit
    rows.npz     lengths (r,) of the rows; and of the items, n of them: rows (n,) or (n, 2), which row or which pair of
                 rows, targets (n,) and parts (n,), 0 train, 1 validation, 2 test
    meta.json    the vocabulary, and the size and a checksum of the rest; written last
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.made_once import cache_folder, made_once
from statewise.data.sequences import begins_of
from statewise.errors import reading
from statewise.files.arrays import read_npz

FORMAT = 1
DTYPES = ("|u1", "<u2")  # of values
OWN_FOLDER = "long-range-rows"  # in a folder of the user

Write = Callable[[np.ndarray, np.ndarray], None]  # values of some rows, one after the other, and their lengths


class Items(NamedTuple):
    """What a maker returns when all rows are written; see above for the arrays.

    rows: None where item i is row i.  vocabulary: the tokens in order, empty for numbers.
    """

    targets: np.ndarray
    parts: np.ndarray
    rows: np.ndarray | None = None
    vocabulary: tuple[str, ...] = ()


class Stored(NamedTuple):
    """An opened store. values: (steps,) memory map.  begins, lengths: (r,) int64."""

    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    items: Items
    checksum: str


def stored_rows(
    config: LongRangeDataConfig,
    content: Any,
    make: Callable[[Write], Items],
    *,
    dtype: type[np.unsignedinteger] = np.uint8,
) -> Stored:
    """The rows that ``make`` writes, made now unless they are there already: in the cache, or for what is drawn in
    ``config.folder`` if that is given.

    content: JSON data that says all that the rows hang on, files by path, size and time.

    Errors:  DataError if they cannot be kept.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, config.task, content]).encode()).hexdigest()[:24]
    own = config.folder is not None and config.task.endswith("-gen")
    root = Path(os.path.expanduser(str(config.folder)), OWN_FOLDER) if own else cache_folder() / "long-range"
    return made_once(
        root / f"{config.task}-{digest}",
        load=_load,
        build=lambda folder: _build(folder, make, np.dtype(dtype)),
        noun="rows" if own else "cache of rows",
        remedy="set data.folder" if own else "set STATEWISE_CACHE",
    )


def identity(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What says whether files are the same: path, size and time of each.

    Errors:  DataError if one cannot be read.
    """
    found = []
    for path in paths:
        with reading(path):
            status = path.stat()
        found.append((str(path.absolute()), status.st_size, status.st_mtime_ns))
    return found


def _load(folder: Path) -> Stored | None:
    """None if it is not there, or not whole. The values are not read: their size has to be right."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta["format"] != FORMAT or meta["dtype"] not in DTYPES:
            return None
        arrays = read_npz(folder / "rows.npz")
        values: np.ndarray = np.memmap(folder / "values.bin", meta["dtype"], mode="r")
        lengths = arrays.pop("lengths")
        items = Items(**arrays, vocabulary=tuple(map(str, meta["vocabulary"])))
        rows = np.arange(len(lengths)) if items.rows is None else items.rows
        whole = (
            int(lengths.sum()) == len(values) == meta["steps"]
            and len(rows) == len(items.targets) == len(items.parts) > 0
            and bool((lengths > 0).all())
            and 0 <= int(rows.min()) <= int(rows.max()) < len(lengths)
            and {a.dtype.kind for a in (lengths, rows, items.targets, items.parts)} == {"i"}
        )
        return Stored(values, begins_of(lengths), lengths, items, str(meta["checksum"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, make: Callable[[Write], Items], dtype: np.dtype) -> None:
    digest, lengths = hashlib.blake2b(digest_size=32), []
    with open(folder / "values.bin", "wb") as file:

        def write(values: np.ndarray, row_lengths: np.ndarray) -> None:
            data = np.ascontiguousarray(values, dtype).data
            file.write(data)
            digest.update(data)
            lengths.append(np.asarray(row_lengths, np.int64))

        items = make(write)
    arrays = {"lengths": np.concatenate(lengths), "targets": items.targets.astype(np.int64)}
    arrays["parts"] = items.parts.astype(np.int8)
    if items.rows is not None:
        arrays["rows"] = items.rows.astype(np.int64)
    np.savez(folder / "rows.npz", allow_pickle=False, **arrays)
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    meta = {"format": FORMAT, "dtype": dtype.str, "steps": int(arrays["lengths"].sum())}
    meta |= {"vocabulary": list(items.vocabulary), "checksum": digest.hexdigest()}
    (folder / "meta.json").write_text(json.dumps(meta), "utf-8")
