"""Your own sequences: numpy arrays in one .npz file, or in an .npy file with a second file of labels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from statewise.data.own.known import NOTHING, Known
from statewise.data.own.targets import as_targets
from statewise.data.sequences import Found, Rows
from statewise.data.splits import SPLITS
from statewise.errors import DataError, excerpt, reading
from statewise.files.arrays import read_npy, read_npz
from statewise.files.opening import read_file

NAMES = ("x", "y", "lengths")
WRITE = "write it with numpy.savez(path, x=..., y=...)"


def find_arrays(
    path: Path | None, *, labels: Path | None = None, task: str | None = None, known: Known = NOTHING
) -> Found:
    """``x`` and ``y``, and ``lengths`` if there are any; or ``train_x``, ``train_y``, ``train_lengths`` and the same
    with ``validation_`` and ``test_``.

    x:        (n, length) or (n, length, d_input) real numbers. Pad rows of different lengths, and give ``lengths``
              (n,). Padding is not read.
    y:        (n,) integers or strings: classes, named in sorted order. (n,) or (n, d_output) floating: regression,
              as are whole numbers where the task says so.
    Written by ``numpy.savez(path, x=..., y=...)``. Arrays of Python objects are refused: they are pickles. An .npy file
    is x, and y is the file ``labels``: an .npy, or a text with a label a line.

    task, known: see :func:`statewise.data.own.targets.as_targets`
    Errors:  DataError, one line, if the file is missing or has another form.
    """
    if path is None:
        raise DataError("source 'arrays' reads your own file; set data.folder (--data-dir) to an .npz with x and y")
    if not path.is_file():
        raise DataError(f"data.folder={str(path)!r} is not a file; source 'arrays' reads an .npz file of numpy")
    arrays = _one_array(path, labels) if path.suffix == ".npy" else _many(path, labels)
    parts = [part for part in SPLITS if f"{part}_x" in arrays]
    kinds = {arrays[f"{part}_y"].dtype.kind for part in parts}
    if not kinds <= set("iufUSO") or (len(kinds) > 1 and kinds - set("iu")):
        raise DataError(
            f"{path}: y is {', '.join(str(arrays[f'{part}_y'].dtype) for part in parts)}; expected integers or strings "
            "(classes), or floating numbers (regression), alike in all splits"
        )
    regresses = kinds == {"f"} or (kinds <= set("iu") and (known.task or task) == "regression")
    for part in parts:
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if x.ndim not in (2, 3) or x.dtype.kind not in "fiub" or not x.size:
            raise DataError(f"{path}: {part}_x is {x.dtype} {x.shape}; expected real numbers (n, length[, d_input])")
        if y.shape[:1] != x.shape[:1] or not y.size or y.ndim > (2 if regresses else 1):
            several = y.shape[:1] == x.shape[:1] and y.ndim == 2 and y.dtype.kind in "iu"
            instead = "; to predict several numbers say --set data.task=regression" if several else ""
            raise DataError(
                f"{path}: {part}_y is of shape {y.shape} for {len(x)} rows of {part}_x; expected ({len(x)},){instead}"
            )
    try:
        together = np.concatenate([arrays[f"{part}_y"] for part in parts])
    except ValueError as error:
        raise DataError(f"{path}: y has {error} in its splits; expected as many numbers in all") from error
    targets, classes = as_targets(together, known.task or task, lambda i: f"{path}, label {i}", known.classes)
    ends = np.cumsum([len(arrays[f"{part}_y"]) for part in parts])[:-1]
    rows = {part: _rows(path, part, arrays, own) for part, own in zip(parts, np.split(targets, ends))}
    widths = {part: part_rows.values.shape[1] for part, part_rows in rows.items()}
    for part, width in widths.items():
        if width != widths["train"]:
            raise DataError(f"{path}: train_x has {widths['train']} numbers a step, {part}_x {width}")
    own_rows = f"its own rows for {' and '.join(parts)}" if len(parts) > 1 else "its rows divided"
    return Found(
        path.name, rows["train"], rows.get("test"), classes, "dataset", (own_rows,), validation=rows.get("validation")
    )


def _many(path: Path, labels: Path | None) -> dict[str, np.ndarray]:
    """The arrays of an .npz, each name beginning with its split."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file (not a zip archive); {WRITE}")
    if labels is not None:
        raise DataError(f"{path} holds its labels, as y; leave data.labels out")
    arrays = read_npz(path)
    plain = "x" in arrays or "y" in arrays
    names = NAMES if plain else tuple(f"{part}_{name}" for part in SPLITS for name in NAMES)
    if unknown := sorted(arrays.keys() - set(names)):
        raise DataError(f"{path} holds {excerpt(unknown[0])}; the names are {', '.join(sorted(names))}")
    for name in names[:2]:
        if name not in arrays:
            raise DataError(f"{path} has no {name}; {WRITE}")
    if plain:
        return {f"train_{name}": array for name, array in arrays.items()}
    for part in SPLITS[1:]:
        if (f"{part}_x" in arrays) != (f"{part}_y" in arrays):
            raise DataError(
                f"{path} has only one of {part}_x and {part}_y; give both, or neither and a data.{part}_fraction"
            )
    return arrays


def _one_array(path: Path, labels: Path | None) -> dict[str, np.ndarray]:
    if labels is None:
        raise DataError(
            f"{path} holds one array, x, without labels; name the file of labels in data.labels, or {WRITE}"
        )
    with reading(path):
        x = read_npy(read_file(path), str(path))
    data = read_file(labels)
    if labels.suffix == ".npy":
        y = read_npy(data, str(labels))
    else:
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{labels} is neither a text with a label on each line nor an .npy file") from error
        y = np.array([line.strip() or None for line in lines], object)
    return {"train_x": x, "train_y": y}


def _rows(path: Path, part: str, arrays: dict[str, np.ndarray], targets: np.ndarray) -> Rows:
    x = arrays[f"{part}_x"]
    x = x[..., None] if x.ndim == 2 else x
    lengths = arrays.get(f"{part}_lengths", np.full(len(x), x.shape[1]))
    if lengths.shape != (len(x),) or lengths.dtype.kind not in "iu":
        raise DataError(f"{path}: {part}_lengths is {lengths.dtype} {lengths.shape}; expected integers ({len(x)},)")
    if lengths.min() < 1 or lengths.max() > x.shape[1]:
        raise DataError(f"{path}: {part}_lengths holds {lengths.min()} to {lengths.max()}; expected 1 to {x.shape[1]}")
    values = x[np.arange(x.shape[1]) < lengths[:, None]]
    if values.dtype.kind == "f" and not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise DataError(f"{path}: {part}_x has values that are not finite in float32; fill them or drop the rows")
    return Rows(values, lengths.astype(np.int64), targets)
