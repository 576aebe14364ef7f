"""Tables and data sets of other libraries, written to a file, so that you can resume, evaluate and ask a run later."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from statewise.errors import InputError, few, importing, reason
from statewise.files.parquet import arrow_columns
from statewise.files.tables import Table

TABLE = "table"


def of_library(data: Any, name: str) -> bool:
    """Whether its class, or one that it derives from, is that library's; nothing is imported."""
    return any(cls.__module__.split(".")[0] == name for cls in type(data).__mro__)


def is_frame(data: Any) -> bool:
    return of_library(data, "pandas") and hasattr(data, "columns")


def is_series(data: Any) -> bool:
    """Whether it is a Series of pandas, of numbers."""
    return of_library(data, "pandas") and hasattr(data, "to_frame") and getattr(data.dtype, "kind", "O") in "iuf"


def series_frame(series: Any) -> Any:
    """A Series of pandas as a table: its index is the first column, "time" or "step" unless it has a name; its values
    are "value" unless they have one.
    """
    dates = series.index.dtype.kind in "MO" or type(series.index).__name__ == "PeriodIndex"
    index = series.index.rename(str(series.index.name or ("time" if dates else "step")))
    values = str("value" if series.name is None else series.name)
    if values == index.name:
        raise InputError(f"the Series and its index are both called {values!r}; rename one of them")
    return index.to_frame(index=False).assign(**{values: series.array})


def is_torch_data(data: Any) -> bool:
    """Whether it is a Dataset or a DataLoader of PyTorch."""
    return any(cls.__module__.startswith("torch.utils.data") for cls in type(data).__mro__)


def frame_of(data: Any) -> Any:
    """A DataFrame, or the one that a data set of Hugging Face's is; None for what is neither."""
    if is_frame(data):
        return data
    return data.to_pandas() if of_library(data, "datasets") and hasattr(data, "to_pandas") else None


def as_table(frame: Any) -> Table:
    """A DataFrame as it would be read from the file that :func:`write_frame` writes.

    Errors:  InputError as there, and without pyarrow.
    """
    frame = _as_written(frame)
    with importing("pyarrow", "files", "a DataFrame needs"):
        import pyarrow
    with _refusing("be read"):
        table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    columns = arrow_columns(table)
    return Table(Path("the DataFrame"), "parquet", columns, lambda i: f"row {i}", tuple(columns))


def write_frame(frame: Any, folder: Callable[[], Path]) -> Path:
    """``table.parquet`` of a DataFrame in the folder that is asked for, or ``table.csv`` where pyarrow is not
    installed. An index of times becomes the first column, another index is left out.

    Errors:  InputError for a frame without rows, and one that no file holds.
    """
    frame = _as_written(frame)
    place = folder()
    with _refusing("be written"):
        if importlib.util.find_spec("pyarrow") is not None:
            frame.to_parquet(path := place / f"{TABLE}.parquet", index=False)
        else:
            frame.to_csv(path := place / f"{TABLE}.csv", index=False)
    return path


@contextmanager
def _refusing(done: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:  # pyarrow's derive from these
        raise InputError(f"the DataFrame cannot {done} as a table: {reason(error)}") from error


def _as_written(frame: Any) -> Any:
    """With texts as names, and an index of times as the first column. Errors: InputError as :func:`write_frame`."""
    if not len(frame) or not len(frame.columns):
        raise InputError(f"the DataFrame has {len(frame)} rows and {len(frame.columns)} columns; expected some of both")
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise InputError(
            f"the DataFrame has two columns with the same name, {few(sorted({n for n in names if names.count(n) > 1}))}"
        )
    frame = frame.set_axis(names, axis=1)
    if type(frame.index).__name__ == "PeriodIndex":
        frame = frame.set_axis(frame.index.to_timestamp(), axis=0)
    if frame.index.dtype.kind == "M":
        name = str(frame.index.name or "time")
        if name in names:
            raise InputError(f"the DataFrame has an index and a column, both called {name!r}; rename one of them")
        frame = frame.reset_index(names=name)
    return frame


def collect(data: Any) -> tuple[list[Any], list[Any]]:
    """x and y of every row of a Dataset, and of every batch of a DataLoader, read once.

    Errors:  InputError for items that are not pairs, and for data without an end that say so.
    """
    is_batched = hasattr(data, "batch_size") and hasattr(data, "dataset") and data.batch_size is not None
    xs: list[Any] = []
    ys: list[Any] = []
    for number, item in enumerate(_items(data)):
        if isinstance(item, Mapping) and {"x", "y"} <= item.keys():
            item = (item["x"], item["y"])
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            what = f"{type(item).__name__} of {len(item)}" if isinstance(item, (tuple, list)) else type(item).__name__
            raise InputError(f"item {number} of the {type(data).__name__} is a {what}; expected (x, y)")
        if is_batched:
            if len(item[0]) != len(item[1]):
                raise InputError(f"batch {number} of the DataLoader has {len(item[0])} x and {len(item[1])} y")
            xs.extend(item[0])
            ys.extend(item[1])
        else:
            xs.append(item[0])
            ys.append(item[1])
    if not xs:
        raise InputError(f"the {type(data).__name__} is empty; expected items (x, y)")
    return xs, ys


def _items(data: Any) -> Iterable[Any]:
    """A Dataset without ``__iter__`` is read by its length, and not beyond it."""
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not hasattr(data, "__iter__"):
        return (data[i] for i in range(len(data)))
    return data


def hugging_face_columns(data: Any, label_field: str | None, text_field: str | None) -> tuple[Any, Any] | None:
    """(x, y) of a data set of the Hugging Face library: texts, or sequences in one column, and their labels, classes by
    their names; y is None for texts without labels; None for a table, whose rows have a number in each column.

    Errors:  InputError for a field that it does not have, and where it does not say what is x.
    """
    columns = data.column_names
    for option, field in (("label_field", label_field), ("text_field", text_field)):
        if field is not None and field not in columns:
            raise InputError(f"{option}={field!r}: there is no such column; the columns are {few(columns)}")
    label = label_field or ("label" if "label" in columns else None)
    text = text_field or ("text" if "text" in columns else None)
    y = None
    if label is not None:
        names = getattr(data.features[label], "names", None)
        y = data[label][:]
        y = [names[i] for i in y] if names else list(y)
    if text is not None:
        return list(data[text][:]), y
    others = [name for name in columns if name != label]
    lists = [name for name in others if isinstance(data[0][name], (list, np.ndarray))]
    if not lists:
        return None
    if y is None or len(others) != 1:
        raise InputError(
            f"the data set has the columns {few(columns)}; give one with a column of sequences and one of labels "
            "(label_field=), or with texts (text_field=)"
        )
    return [np.asarray(row) for row in data[lists[0]][:]], y
