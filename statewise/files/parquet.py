"""Parquet files, by pyarrow."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.errors import DataError, importing
from statewise.files.json_lines import Found
from statewise.files.limits import require_within
from statewise.files.opening import refusing, unfolded

INDEX = re.compile(r"__index_level_\d+__")  # pandas' own row names
BYTES = 8  # of a value in memory, about


def read_parquet(path: Path, wanted: Sequence[str] | None) -> Found:
    """Its columns; errors as of :func:`checked_parquet`."""
    file = checked_parquet(path)
    with refusing(f"cannot read {path}"):
        names = [name for name in file.schema_arrow.names if not INDEX.fullmatch(name)]
        if len(set(names)) < len(names):
            raise DataError(f"{path} has two columns with one name; give each its own")
        table = file.read(columns=[name for name in names if wanted is None or name in wanted])
        columns = arrow_columns(table)
    return Found(columns, lambda i: f"row {i + 1}", tuple(names))


def checked_parquet(path: Path) -> Any:
    """The file, opened by pyarrow, that can be read whole: how many values it claims is held against its bytes.

    Errors:  DataError for what is damaged, expands to more than its size allows, and without pyarrow.
    """
    with importing("pyarrow", "files", f"{path}: Parquet needs", DataError):
        import pyarrow.parquet
    with unfolded(path) as raw:
        data = raw.read()
    with refusing(f"cannot read {path}"):
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data))
        # A damaged chunk ends the process in `column` of a row group, and is refused here: decoded in pieces
        file.scan_contents()
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        require_within(str(path), sum(chunk.total_uncompressed_size for chunk in chunks), len(data))
        require_within(str(path), BYTES * sum(chunk.num_values for chunk in chunks), len(data))
    return file


def arrow_columns(table: Any) -> dict[str, np.ndarray]:
    """The columns of a pyarrow table, as :class:`statewise.files.tables.Table` has them."""
    import pyarrow.types

    return {name: _as_column(table.column(name), pyarrow.types) for name in table.column_names}


def _as_column(chunked: Any, types: Any) -> np.ndarray:
    kind = chunked.type
    if types.is_dictionary(kind):
        chunked = chunked.cast(kind.value_type)
        kind = chunked.type
    if types.is_decimal(kind):
        chunked, kind = chunked.cast("float64"), "float64"
    elif types.is_date(kind):
        chunked = chunked.cast("timestamp[s]")
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(chunked, types)
    found: np.ndarray = chunked.to_numpy()
    if found.dtype == object and chunked.null_count and types.is_boolean(kind):
        return found  # true, false and None
    return found


def _lists(chunked: Any, types: Any) -> np.ndarray:
    """Arrays (length,), or (length, d) of lists of lists; None where there is none; others as Python has them."""
    column = np.empty(len(chunked), object)
    inner = chunked.type.value_type
    plain = types.is_integer(inner) or types.is_floating(inner)
    for i, one in enumerate(chunked):
        if not one.is_valid:
            continue
        values = one.values.to_numpy(zero_copy_only=False) if plain else one.as_py()
        if not plain:
            try:
                nested = np.array(values, np.float64)
                values = nested if nested.ndim == 2 else values
            except (TypeError, ValueError):
                pass
        column[i] = values
    return column
