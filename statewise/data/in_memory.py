"""Data in memory, written to a file, so that you can resume, evaluate and ask a run later."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.data.labelled import LabelledDataConfig
from statewise.errors import InputError
from statewise.files.disk import sync

ARRAYS = "arrays.npz"
TEXTS = "texts.jsonl"
SERIES = "series.csv"
PARTS = ("train", "validation", "test")


def write_arrays(parts: Mapping[str, tuple[Any, ...]], folder: Callable[[], Path]) -> LabelledDataConfig:
    """``arrays.npz`` of labelled rows in the folder that is asked for, and the config that reads it.

    parts: (x, y) or (x, y, lengths) by the name of the split; "train" at least. x: (n, length) or (n, length, d_input)
           numbers, or a list of n rows of unlike lengths. y: n classes (integers or strings), or real numbers.
           lengths: (n,) where x is padded.

    Errors:  InputError, one line, before anything is written.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        x, y, lengths = (*part, None)[:3]
        values, own = as_padded(x, f"{name} x" if len(parts) > 1 else "x", lengths)
        arrays[f"{name}_x"] = values
        arrays[f"{name}_y"] = as_targets(y, len(values), f"{name} y" if len(parts) > 1 else "y")
        if own is not None:
            arrays[f"{name}_lengths"] = own
    path = folder() / ARRAYS
    with path.open("xb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    sync(path)
    return LabelledDataConfig(source="arrays", folder=str(path))


def as_padded(x: Any, name: str, lengths: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
    """(n, length) or (n, length, d_input), and the rows' lengths where they are not alike.

    Errors:  InputError unless it is an array of numbers with rows, all of them finite.
    """
    array = as_array(x)
    if array is None or array.dtype.kind not in "biuf":
        rows = [as_array(row) for row in x] if isinstance(x, (Sequence, np.ndarray)) else []
        array, lengths = _padded(rows, name, x), np.array([len(row) for row in rows if row is not None])
    if array.ndim not in (2, 3) or not array.size:
        one = "; one row is [row]" if array.ndim == 1 and array.size else ""
        raise InputError(f"{name} has the shape {array.shape}; expected (n, length) or (n, length, d_input){one}")
    found = None if lengths is None else np.asarray(lengths)
    if found is not None and (found.shape != (len(array),) or found.dtype.kind not in "iu"):
        raise InputError(f"lengths is {found.dtype} {found.shape}; expected an integer for each of {len(array)} rows")
    if found is not None and not (found.min() >= 1 and found.max() <= array.shape[1]):
        raise InputError(f"lengths holds {found.min()} to {found.max()}; expected 1 to {array.shape[1]}, the padded")
    if array.dtype.kind == "f":
        real = array if found is None else array[np.arange(array.shape[1]) < found[:, None]]
        if not np.isfinite(real).all():
            raise InputError(f"{name} holds NaN or infinity; fill them, or leave these rows out")
    return array, found


def as_array(x: Any) -> np.ndarray | None:
    """An array of numbers or texts; None for what is none, as rows of unlike lengths."""
    if hasattr(x, "detach"):  # a tensor
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError):
        return None
    if array.dtype.kind == "O" and array.size:
        array = np.array(array.tolist()) if all(not hasattr(one, "__len__") for one in array.ravel()) else array
    return None if array.dtype.kind == "O" else array


def as_targets(y: Any, n: int, name: str = "y") -> np.ndarray:
    """(n,) classes, or (n,) or (n, d_output) numbers. True and false are classes by these names.

    Errors:  InputError for other shapes and kinds, and numbers that are not finite.
    """
    array = as_array(y)
    if array is None or array.dtype.kind not in "biufU":
        what = f"a {type(y).__name__}" if array is None else f"{array.dtype} {array.shape}"
        raise InputError(f"{name} is {what}; expected {n} classes (integers or strings), or {n} real numbers")
    if array.shape[:1] != (n,) or array.ndim > (2 if array.dtype.kind in "iuf" else 1):
        raise InputError(f"{name} has the shape {array.shape} for {n} rows; expected ({n},)")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{name} holds NaN or infinity; leave these rows out")
    return array.astype(str) if array.dtype.kind == "b" else array


def _padded(rows: Sequence[np.ndarray | None], name: str, given: Any) -> np.ndarray:
    """Rows of unlike lengths, with zeros behind them."""
    if not rows:
        raise InputError(f"{name} is a {type(given).__name__}; give an array of numbers, or a list of rows")
    for i, row in enumerate(rows):
        if row is None or row.dtype.kind not in "biuf" or row.ndim not in (1, 2) or not row.size:
            what = "no array" if row is None else f"{row.dtype} {row.shape}"
            raise InputError(f"row {i} of {name} is {what}; expected numbers, (length,) or (length, d_input)")
        if row.shape[1:] != rows[0].shape[1:]:  # type: ignore[union-attr]
            raise InputError(
                f"row {i} of {name} has the shape {row.shape}, row 0 {rows[0].shape}; "  # type: ignore[union-attr]
                "expected as many numbers a step in each"
            )
    found = [row for row in rows if row is not None]
    padded = np.zeros((len(found), max(map(len, found)), *found[0].shape[1:]), np.result_type(*found))
    for place, row in zip(padded, found):
        place[: len(row)] = row
    return padded


def write_texts(texts: Sequence[str], labels: Any, folder: Callable[[], Path]) -> Path:
    """``texts.jsonl`` in the folder that is asked for, a line for each text, {"text": ..., "label": ...}.

    labels:  None, or one for each text
    Errors:  InputError for texts that are not strings, empty, or not Unicode, and if there are not as many labels.
    """
    names = None if labels is None else as_targets(labels, len(texts)).tolist()
    lines = []
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InputError(f"text {i} is {'empty' if text == '' else f'a {type(text).__name__}'}; expected a string")
        lines.append(
            json.dumps({"text": text} if names is None else {"text": text, "label": names[i]}, ensure_ascii=False)
        )
    try:
        content = "".join(f"{line}\n" for line in lines).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a text is not Unicode ({error.reason}); write it to a file of bytes, and give that file"
        ) from error
    path = folder() / TEXTS
    with path.open("xb") as file:
        file.write(content)
    sync(path)
    return path


def write_series(values: np.ndarray, folder: Callable[[], Path]) -> Path:
    """``series.csv`` of one series (length,) in the folder that is asked for: the columns "step" and "value"."""
    lines = [f"{step},{repr(value) if value == value else ''}\n" for step, value in enumerate(values.tolist())]
    path = folder() / SERIES
    with path.open("x", encoding="utf-8") as file:
        file.writelines(["step,value\n", *lines])
    sync(path)
    return path


def is_texts(x: Any) -> bool:
    """Whether it is a list of strings, or an array of them."""
    if isinstance(x, np.ndarray) or hasattr(x, "to_numpy"):
        return np.asarray(x).dtype.kind == "U" or (np.asarray(x).dtype == object and all(isinstance(t, str) for t in x))
    return isinstance(x, Sequence) and not isinstance(x, (str, bytes)) and len(x) > 0 and isinstance(x[0], str)
