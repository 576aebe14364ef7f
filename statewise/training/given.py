"""From data in Python to what a run reads: :func:`take`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from statewise.data.base import DataConfig
from statewise.data.in_memory import PARTS, as_array, is_texts, write_arrays, write_series, write_texts
from statewise.data.in_memory_tables import (
    collect,
    hugging_face_columns,
    is_frame,
    is_series,
    is_torch_data,
    of_library,
    series_frame,
    write_frame,
)
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.recognise import CORPUS, LABELLED, SERIES_KIND, TEXTS, Recognised, recognise
from statewise.data.series import SeriesDataConfig
from statewise.data.text import TextDataConfig
from statewise.errors import InputError
from statewise.training.ranks import require_one_process

DATA = "data"  # the folder within a run's
KEYS = ("x", "y", "lengths", "validation", "test")


def take(
    data: Any,
    folder: Callable[[], Path],
    parts: Mapping[str, Any],
    wanted: str | None,
    options: Mapping[str, Any],
) -> Recognised:
    """What to read; data in memory are written into a folder first.

    folder:          gives one that is empty; called for data in memory alone
    parts:           of their own, "validation" and "test"; None: there is none
    wanted, options: as for :func:`recognise`

    Errors:  InputError for anything that is not data; DataError as ``recognise``.
    """
    own = {name: part for name, part in parts.items() if part is not None}
    if isinstance(data, (DataConfig, str, os.PathLike)):
        _require_none(own, "give a folder with train, validation and test in it, or set data.test_fraction")
        if isinstance(data, DataConfig):
            return _settled(data)
        return recognise(data if isinstance(data, str) else os.fspath(data), wanted=wanted, **options)
    require_one_process("data in memory are written")
    if isinstance(data, Mapping) and not of_library(data, "datasets"):
        if unknown := sorted(map(str, data.keys() - {*KEYS})):
            raise InputError(f"data has the key {unknown[0]!r}; the keys are {', '.join(KEYS)}")
        own = {name: data[name] for name in PARTS[1:] if data.get(name) is not None} | own
    elif isinstance(data, Mapping):  # a DatasetDict
        if data.keys() - {*PARTS} or "train" not in data:
            raise InputError(f"the data set has the parts {', '.join(data)}; expected train, validation, test")
        own = {name: data[name] for name in PARTS[1:] if name in data} | own
        data = data["train"]
    table = _as_frame(data, options)
    if table is not None:
        _require_none(own, "a table holds all rows; give a file for each")
        return recognise(str(write_frame(table, folder)), wanted=wanted, **options)
    one = _one_series(data, wanted, folder)
    if one is not None:
        _require_none(own, "of a series the end is held out: set data.validation_fraction and data.test_fraction")
        path, time, target = one
        names = {"time": options.get("time") or time, "targets": options.get("targets") or (target,)}
        return recognise(str(path), wanted=SERIES_KIND, **{**options, **names})
    rows = {name: _rows(part, name, options) for name, part in ({"train": data} | own).items()}
    texts, labels = rows["train"][:2]
    if is_texts(texts):
        _require_none(own, "for texts, parts are held out: set data.validation_fraction and data.test_fraction")
        said = {"text_field": "text"} | ({} if labels is None else {"label_field": "label"})
        return recognise(str(write_texts(list(texts), labels, folder)), wanted=wanted, **said)
    config = write_arrays({name: rows[name] for name in PARTS if name in rows}, folder)
    n = len(texts)
    return Recognised(config, LABELLED, f"data is {n:,} rows of arrays", frozenset({"source", "folder"}))


def _settled(config: DataConfig) -> Recognised:
    kind = LABELLED
    if isinstance(config, (TextDataConfig, SeriesDataConfig)):
        kind = CORPUS if isinstance(config, TextDataConfig) else SERIES_KIND
    elif isinstance(config, LabelledTextDataConfig):
        kind = TEXTS
    name = type(config).__name__
    return Recognised(config, kind, f"data is a {name}", frozenset(field.name for field in fields(config)))


def _require_none(own: Mapping[str, Any], instead: str) -> None:
    if own:
        raise InputError(f"{next(iter(own))}= is for arrays; {instead}")


def _as_frame(data: Any, options: Mapping[str, Any]) -> Any:
    """A DataFrame, or a data set of Hugging Face's that is a table; None for what is none."""
    if is_frame(data):
        return data
    if of_library(data, "datasets") and not hasattr(data, "keys"):
        found = hugging_face_columns(data, options.get("label_field"), options.get("text_field"))
        return data.to_pandas() if found is None else None
    return None


def _one_series(data: Any, wanted: str | None, folder: Callable[[], Path]) -> tuple[Path, str, str] | None:
    """A Series of pandas or an array (length,), written; the names of its times and values. None for what is neither.

    Errors:  InputError for an array of another shape where series are wanted.
    """
    if wanted not in (None, SERIES_KIND):
        return None
    if is_series(data):
        frame = series_frame(data)
        return (write_frame(frame, folder), *frame.columns)
    values = as_array(data) if isinstance(data, (np.ndarray, list)) or hasattr(data, "detach") else None
    if values is None or values.dtype.kind not in "iuf":
        return None
    if values.ndim == 1 and values.size:
        return write_series(values, folder), "step", "value"
    if wanted is None:
        return None
    raise InputError(
        f"data has the shape {values.shape}; give one series, (length,), or several in a DataFrame: a column for each "
        "target, and one that tells series apart (row_field=)"
    )


def _rows(part: Any, name: str, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """x, y (None: texts alone), and lengths (None: not padded)."""
    if is_torch_data(part):
        return (*collect(part), None)
    if of_library(part, "datasets"):
        found = hugging_face_columns(part, options.get("label_field"), options.get("text_field"))
        if found is None:
            raise InputError(f"the {name} data have no column of sequences or texts")
        return (*found, None)
    if isinstance(part, Mapping):
        if "x" not in part or "y" not in part:
            raise InputError(f"the {name} data have the keys {', '.join(map(str, part))}; give x and y")
        return part["x"], part["y"], part.get("lengths")
    if isinstance(part, tuple) and len(part) in (2, 3):
        return (*part, None)[:3]
    if is_texts(part):
        return part, None, None
    what = f"a tuple of {len(part)}" if isinstance(part, tuple) else f"a {type(part).__name__}"
    raise InputError(
        f"the {name} data are {what}; give (x, y), a dict with x and y, texts, a DataFrame, a Dataset, or a path; to "
        "forecast, one series (length,) as well"
    )
