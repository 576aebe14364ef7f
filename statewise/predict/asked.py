"""What lies at a path, as rows for a model: of the kind of files that it was trained on, or arrays, or a signal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from statewise.data.in_memory_tables import as_table
from statewise.data.own.folders import media_within
from statewise.data.own.media import read_one
from statewise.data.own.tables import read_sequences
from statewise.errors import DataError, InputError
from statewise.files.sniffing import checked_kind, in_words
from statewise.files.tables import Table, read_table
from statewise.models.encoder import SequenceModelConfig
from statewise.models.file_input import TABLES, FilesConfig
from statewise.predict.files import read_arrays
from statewise.predict.kept import Kept, kept_of_table, require_no_fields
from statewise.predict.rows import as_row, as_rows, files_of
from statewise.predict.signals import read_signal

MEDIA = {"picture": "pictures", "sound": "sounds"}
ARRAYS = (".npz", ".npy")


class NamedRows(list[Any]):
    """Rows or texts, what each is called (None: it has only a number), the column of the answers that says so, and what
    is kept beside the answers."""

    def __init__(
        self, rows: Sequence[Any], names: Sequence[str | int] | None, named_by: str, kept: Kept | None = None
    ) -> None:
        super().__init__(rows)
        self.names, self.named_by, self.kept = names, named_by, kept


class FileRows(Sequence[np.ndarray]):
    """A row for each file, which is decoded when it is asked for, so that a folder may be larger than memory."""

    named_by = "file"

    def __init__(self, paths: Sequence[Path], names: Sequence[str], config: SequenceModelConfig) -> None:
        self.paths, self.names, self.config = paths, names, config

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, i: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, i: slice) -> list[np.ndarray]: ...
    def __getitem__(self, i: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        files = files_of(self.config)
        assert files is not None
        return as_row(str(self.paths[i]), read_one(self.paths[i], files), self.config, self.config.frame_length)


def rows_at(
    path: Path, config: SequenceModelConfig, array: str | None = None, keep: Sequence[str] = ()
) -> Sequence[np.ndarray]:
    """The rows of a file or folder. Labels, and columns that the model does not read, are skipped, but those to
    ``keep``, which a table has, or a signal below a line of names for a model that answers each step.

    .npz, .npy    arrays, see :func:`statewise.predict.files.read_arrays`, for any model
    a folder      for a model of pictures or of sounds: all such files in it, at any depth; or one of them
    a table       for a model of tables: with the columns that hold its steps
    a text        for other models: a signal, a step a line

    Errors:  DataError, one line, for what the model does not read, and as the readers; InputError for other numbers a
             step.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if array is not None and path.suffix != ".npz":
        raise DataError(f"--array names an array of an .npz file, and {path} is not one; leave it out")
    files = files_of(config)
    if path.suffix in ARRAYS:
        require_no_fields(keep, "arrays have no columns, and their rows are numbered")
        return as_rows(*read_arrays(path, array), config)
    if files is not None and files.kind in TABLES:
        if path.is_dir():
            raise DataError(f"{path} is a folder, but this model was trained on tables; give a table")
        more = [name for name in keep if name not in files.every_column]
        text = [*more, *([files.row_field] if files.row_field else [])]  # an id may begin with zeros
        return _of_table(read_table(path, columns=[*files.every_column, *more], text=text), files, config, keep)
    if files is not None and (path.is_dir() or MEDIA.get(checked_kind(path)) == files.kind):
        require_no_fields(keep, f"{files.kind} have no columns, and the answers name each file")
        paths = media_within(path)
        root = path if path.is_dir() else path.parent
        return FileRows(paths, [one.relative_to(root).as_posix() for one in paths], config)
    kind = "folder" if path.is_dir() else checked_kind(path)
    if kind not in ("table", "text"):
        trained = "arrays" if files is None else files.kind
        raise DataError(
            f"{path} is {in_words(kind)}, but this model was trained on {trained}; give "
            f"{'' if files is None else files.kind + ', '}.npz, .npy, or a signal as text, a step a line"
        )
    if keep and config.pooling is not None:
        require_no_fields(keep, f"{path} is one signal, which has one answer")
    steps, cells = read_signal(path, config, keep)
    rows = as_rows([steps], None, config)
    kept = None if not keep else Kept(dict(zip(keep, cells.T)), [np.arange(len(steps))])
    return rows if kept is None else NamedRows(rows, None, "row", kept)


def rows_of_frame(frame: Any, config: SequenceModelConfig, keep: Sequence[str] = ()) -> Sequence[np.ndarray]:
    """The rows of a DataFrame, as :func:`rows_at` has them of a table.

    Errors:  InputError for a model that was not trained on tables, and knows no names.
    """
    files = files_of(config)
    if files is None or files.kind not in TABLES:
        trained = "arrays" if files is None else files.kind
        raise InputError(
            f"x is a DataFrame, but this model was trained on {trained} and knows no columns by name; give "
            "arrays: rows in the order of the training, (n, length, d_input)"
        )
    return _of_table(as_table(frame), files, config, keep)


def rows_of_paths(paths: Sequence[Path], config: SequenceModelConfig) -> FileRows:
    """Errors:  InputError for a model that was not trained on pictures or sounds."""
    files = files_of(config)
    if files is None or files.kind in TABLES:
        raise InputError("a list of paths is for models of pictures or sounds; give one path, or arrays")
    return FileRows(paths, [str(path) for path in paths], config)


def _of_table(
    table: Table, files: FilesConfig, config: SequenceModelConfig, keep: Sequence[str]
) -> Sequence[np.ndarray]:
    found = read_sequences(table, files)
    rows = as_rows(found.values, None, config)
    kept = kept_of_table(table, keep, found.rows, by_step=config.pooling is None) if keep else None
    named = found.names is not None or kept is not None
    return NamedRows(rows, found.names, files.row_field or "row", kept) if named else rows
