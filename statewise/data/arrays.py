"""Sequences of your own: numpy arrays in one .npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from statewise.data.sequences import Found, Rows
from statewise.errors import DataError, excerpt
from statewise.files.arrays import read_npz

NAMES = ("x", "y", "lengths")


def find_arrays(path: Path | None) -> Found:
    """``train_x``, ``train_y``, and if there are any ``train_lengths`` and the same with ``test_``.

    x:        (n, length) or (n, length, d_input) real numbers; rows of unlike lengths are padded, and ``lengths`` (n,)
              says how long each is. Padding is not read.
    y:        (n,) integers or strings: classes, named in sorted order. (n,) or (n, d_output) floating: regression.
    Written by ``numpy.savez(path, train_x=..., train_y=...)``. Arrays of Python objects are refused: they are pickles.

    Errors:  DataError, one line, for a file that is not there or not this.
    """
    if path is None:
        raise DataError(
            "source 'arrays' reads a file of your own; set data.folder (--data-dir) to an .npz with train_x and train_y"
        )
    if not path.is_file():
        raise DataError(f"data.folder={str(path)!r} is not a file; source 'arrays' reads an .npz file of numpy's")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} cannot be read as an .npz file: it is no zip archive; write it with numpy.savez")
    arrays = read_npz(path)
    known = {f"{part}_{name}" for part in ("train", "test") for name in NAMES}
    if unknown := sorted(arrays.keys() - known):
        raise DataError(f"{path} holds {excerpt(unknown[0])}; the names are {', '.join(sorted(known))}")
    for name in ("train_x", "train_y"):
        if name not in arrays:
            raise DataError(f"{path} has no {name}; write it with numpy.savez(path, train_x=..., train_y=...)")
    if ("test_x" in arrays) != ("test_y" in arrays):
        raise DataError(f"{path} has one of test_x and test_y; give both, or neither and a data.test_fraction")
    parts = [part for part in ("train", "test") if f"{part}_x" in arrays]
    kinds = {arrays[f"{part}_y"].dtype.kind for part in parts}
    regression = kinds == {"f"}
    if (not regression and not kinds <= set("iuUS")) or (len(kinds) > 1 and kinds - set("iu")):
        raise DataError(
            f"{path}: y is {', '.join(str(arrays[f'{part}_y'].dtype) for part in parts)}; expected integers or strings "
            "(classes), or floating numbers (regression), alike in train and test"
        )
    classes: tuple[str, ...] = ()
    if not regression:
        labels = np.unique(np.concatenate([arrays[f"{part}_y"].ravel() for part in parts]))
        classes = tuple(str(label) for label in labels)
    rows = [_rows(path, part, arrays, labels if not regression else None) for part in parts]
    if len(rows) == 2 and rows[0].values.shape[1] != rows[1].values.shape[1]:
        raise DataError(
            f"{path}: train_x has {rows[0].values.shape[1]} numbers a step, test_x {rows[1].values.shape[1]}"
        )
    own = "its own training and test rows" if len(rows) == 2 else "its rows divided"
    return Found(path.name, rows[0], rows[1] if len(rows) == 2 else None, classes, "dataset", (own,))


def _rows(path: Path, part: str, arrays: dict[str, np.ndarray], labels: np.ndarray | None) -> Rows:
    x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
    if x.ndim not in (2, 3) or x.dtype.kind not in "fiub" or not x.size:
        raise DataError(f"{path}: {part}_x is {x.dtype} {x.shape}; expected real numbers (n, length[, d_input])")
    x = x[..., None] if x.ndim == 2 else x
    if y.shape[:1] != x.shape[:1] or not y.size or y.ndim > (1 if labels is not None else 2):
        raise DataError(f"{path}: {part}_y is of shape {y.shape} for {len(x)} rows of {part}_x; expected ({len(x)},)")
    lengths = arrays.get(f"{part}_lengths", np.full(len(x), x.shape[1]))
    if lengths.shape != (len(x),) or lengths.dtype.kind not in "iu":
        raise DataError(f"{path}: {part}_lengths is {lengths.dtype} {lengths.shape}; expected integers ({len(x)},)")
    if lengths.min() < 1 or lengths.max() > x.shape[1]:
        raise DataError(f"{path}: {part}_lengths holds {lengths.min()} to {lengths.max()}; expected 1 to {x.shape[1]}")
    values = x[np.arange(x.shape[1]) < lengths[:, None]]
    for name, array in (("x", values), ("y", y)):
        if array.dtype.kind == "f" and not (np.abs(array) <= np.finfo(np.float32).max).all():
            raise DataError(f"{path}: {part}_{name} has values that are not finite in float32; fill or drop them")
    if labels is not None:
        targets = np.searchsorted(labels, y).astype(np.int64)
    else:
        targets = (y[:, None] if y.ndim == 1 else y).astype(np.float32)
    return Rows(values, lengths.astype(np.int64), targets)
