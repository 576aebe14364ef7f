"""Your own labelled sequences, in whatever files they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from statewise.data.arrays import find_arrays
from statewise.data.labelled_config import LabelledDataConfig
from statewise.data.own.folders import KINDS, find_classes
from statewise.data.own.known import NOTHING, Known
from statewise.data.own.media import Wished, decide, read_all
from statewise.data.own.tables import LABEL, Fields, counts_rows, decide_columns, labels_of, read_sequences
from statewise.data.own.targets import as_targets
from statewise.data.progress import Progress
from statewise.data.sequences import Found, join
from statewise.errors import DataError, excerpt, few
from statewise.files.sniffing import checked_kind, in_words
from statewise.files.tables import Table, read_table
from statewise.models.file_input import TABLES, FilesConfig

MEDIA = ("image_size", "sampling_rate")
TABLE = ("label_field", "sequence_field", "row_field", "time_field", "ignored_fields", "task")
NORMALIZE = {"pictures": "dataset", "sounds": "series"}


def find_files(
    path: Path | None, config: LabelledDataConfig, progress: Progress | None = None, known: Known = NOTHING
) -> Found:
    """What lies at ``path``:

    a folder      whose subfolders are classes: pictures (JPEG, PNG, BMP, GIF, WebP), all brought to one size, or sounds
                  (WAV, FLAC, OGG), all brought to one sampling rate. "train", "validation" and "test" may stand
                  above the classes.
    a table       CSV of any separator, TSV, Parquet or JSON lines, also compressed by gzip or zstd: a sequence a row, a
                  step a row, or a sequence in a cell.
    .npz, .npy    see :func:`statewise.data.arrays.find_arrays`.

    known: what a trained model says, by which all of this is read for it: a table by its columns in any order, pictures
        in its size, sounds at its rate, labels as its classes. What the config says of these is not looked at then.

    Errors:  DataError, one line, for what is none of these, and for files that are damaged or of another format than
             their names say; ConfigError for fields of the config that are not for what lies there.
    """
    if path is None:
        raise DataError(
            f"source {config.source!r} reads your own files; set data.folder (--data-dir) to a folder of pictures "
            "or sounds, a table, or an .npz with x and y"
        )
    files = known.files
    if path.is_dir():
        if config.source == "arrays":
            return find_arrays(path)
        _require_kind(path, "folder", files)
        if files is None:
            config.require_only(MEDIA, f"is not for a folder, but {path} is one")
        return _find_folder(path, config, progress, known)
    if config.source == "arrays" or path.suffix in (".npz", ".npy"):
        if files is None:
            config.require_only(("labels", "task"), f"is not for arrays, but {path} holds arrays")
            _require_no_channels(config, path)
        labels = None if config.labels is None else Path(config.labels).expanduser()
        return find_arrays(path, labels=labels, task=config.task, known=known)
    kind = checked_kind(path)
    if kind in ("picture", "sound"):
        raise DataError(f"{path} is {in_words(kind)}, a single file; give the folder whose subfolders are the classes")
    _require_kind(path, kind, files)
    if files is None:
        config.require_only(TABLE, f"is not for a table, but {path} is one")
        _require_no_channels(config, path)
    return _find_table(path, config, known)


def _require_kind(path: Path, kind: str, files: FilesConfig | None) -> None:
    """Errors:  DataError for another kind of files than the model was trained on."""
    if files is not None and (kind == "folder") == (files.kind in TABLES):
        trained = "tables" if files.kind in TABLES else files.kind
        needed = "a table" if files.kind in TABLES else "a folder whose subfolders are the classes"
        raise DataError(f"{path} is {in_words(kind)}, but this model was trained on {trained}; give {needed}, or .npz")


def _require_no_channels(config: LabelledDataConfig, path: Path) -> None:
    if config.channels is not None:
        raise DataError(f"data.channels is for pictures and sounds, but {path} is neither; leave it out")


def _find_folder(folder: Path, config: LabelledDataConfig, progress: Progress | None, known: Known) -> Found:
    found = find_classes(folder, KINDS, known)
    paths = [path for files in found.splits.values() for path, _ in files]
    wish = config if known.files is None else known.files
    files, words = decide(paths, found.kind, Wished(wish.channels, wish.image_size, wish.sampling_rate))
    values = iter(read_all(paths, files, progress))
    rows = {}
    for split, members in found.splits.items():
        targets = np.array([number for _, number in members], np.int64)
        rows[split] = join([next(values) for _ in members], targets)
    passed = f"; {found.passed_over}" if found.passed_over else ""
    own = f", in {' and '.join(rows)}" if len(rows) > 1 else ""
    what = f"{found.kind} in {len(found.classes):,} folders{own}, {words}; {_classes(found.classes)}{passed}"
    return Found(
        f"{folder.name}/", rows["train"], rows.get("test"), found.classes, NORMALIZE[found.kind], (),
        files.sampling_rate, validation=rows.get("validation"), taken_for=what, files=files,
    )  # fmt: skip


def _find_table(path: Path, config: LabelledDataConfig, known: Known) -> Found:
    table, files, label, set_aside = _read_columns(path, config, known.files)
    sequences = read_sequences(table, files)
    labels = labels_of(table, files, label)
    targets, classes = as_targets(labels, known.task or config.task, sequences.where, known.classes)
    widths = [values.shape[1] for values in sequences.values]
    if len(set(widths)) > 1:
        other = next(i for i, width in enumerate(widths) if width != widths[0])
        raise DataError(f"{sequences.where(other)} has {widths[other]} numbers a step; the first has {widths[0]}")
    kind = "table" if files.kind == "wide table" else files.kind
    kind += "" if table.kind == "table" else f" in {in_words(table.kind).split(' (')[0]}"
    steps = {
        "wide table": "a sequence in each row, steps",
        "long table": "a step in each row, numbers",
        "lists": "in the column",
    }
    named = _named(files.columns)
    extra = f", sequences by {files.row_field!r}" if files.row_field else ""
    extra += f", sorted by {files.time_field!r}" if files.time_field else ""
    labelled = f"{_classes(classes)} by {label!r}" if classes else f"predicts {label!r}"
    notes = "".join(f"; {note}" for note in (*table.notes, *set_aside))
    what = f"{kind}, {steps[files.kind]} {named}{extra}; {labelled}{notes}"
    rows = join(sequences.values, targets)
    return Found(path.name, rows, None, classes, "dataset", (), taken_for=what, files=files)


def _set_aside(table: Table, files: FilesConfig, fields: Fields, label: str) -> list[str]:
    """A note on columns that name or number the rows: they are left out without being named."""
    used = {*files.columns, label, files.row_field, files.time_field, *fields.ignored}
    left = [name for name in table.columns if name not in used and counts_rows(name, table.columns[name])]
    notes = []
    for verb, kinds in (("numbers", "iu"), ("names", "O")):
        found = [name for name in left if table.columns[name].dtype.kind in kinds]
        notes += [f"{few(found)} {verb} the rows, so it is left out"] if found else []
    return notes


def _read_columns(
    path: Path, config: LabelledDataConfig, known: FilesConfig | None
) -> tuple[Table, FilesConfig, str, list[str]]:
    """A table, how sequences come out of it, the column of their labels, and what is to be said of others."""
    if known is not None:
        label = config.label_field or LABEL
        if label in known.every_column:
            raise DataError(f"the model reads the column {excerpt(label)} as data; name the column of the labels")
        names = [label] if known.row_field is None else [label, known.row_field]
        return read_table(path, columns=[*known.every_column, label], text=names), known, label, []
    fields = Fields(
        config.label_field, config.sequence_field, config.row_field, config.time_field, config.ignored_fields
    )
    table = read_table(path, text=fields.text)
    files, label = decide_columns(table, fields)
    return table, files, label, _set_aside(table, files, fields, label)


def _named(columns: tuple[str, ...]) -> str:
    return few(columns) if len(columns) <= 4 else f"{few(columns[:1])} to {few(columns[-1:])} ({len(columns):,})"


def _classes(classes: tuple[str, ...]) -> str:
    return f"classes {few(classes)}" if len(classes) <= 12 else f"{len(classes):,} classes"
