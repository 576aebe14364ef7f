"""Data sets of Hugging Face: by their name, or as ``Dataset.save_to_disk`` writes them.

``hf:owner/name``, ``hf:owner/name:config``, or a folder that was saved. They are read by the package ``datasets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.data.shelves import checked_entry
from statewise.data.stored_documents import Entry
from statewise.errors import DataError, few, importing, reason
from statewise.files.records import Told, picked

PREFIX = "hf:"
STRINGS = ("string", "large_string")
ROWS = 256  # in memory at once


def is_hugging_face(source: str) -> bool:
    """Whether it is the name of a data set, or a folder that one was saved in."""
    return source.startswith(PREFIX) or is_saved(Path(source).expanduser())


def is_saved(folder: Path) -> bool:
    """Whether ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` has written it."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


@dataclass(frozen=True)
class DatasetShelf:
    """A split of a data set."""

    name: str
    dataset: Any
    text_field: str
    label_field: str | None = None

    @property
    def n_bytes(self) -> int:
        """As many as rows: what progress is counted in."""
        return len(self.dataset)

    @property
    def identity(self) -> list[Any]:
        files = sorted(str(file["filename"]) for file in self.dataset.cache_files)
        times = [Path(file).stat().st_mtime_ns for file in files]
        return [
            self.name,
            self.dataset._fingerprint,
            len(self.dataset),
            files,
            times,
            self.text_field,
            self.label_field,
        ]

    def entries(self, told: Told | None) -> Iterator[Entry]:
        fields = [self.text_field] if self.label_field is None else [self.text_field, self.label_field]
        known = self.dataset.column_names
        columns = {name if name in known else name.partition(".")[0] for name in fields}
        names = (
            None if self.label_field is None else getattr(self.dataset.features.get(self.label_field), "names", None)
        )
        rows = self.dataset.select_columns([column for column in known if column in columns])
        number = 0
        for batch in rows.iter(batch_size=ROWS):
            for values in zip(*batch.values()):
                number += 1
                found = picked(dict(zip(batch, values)), fields, self.place(number))
                if names is not None:
                    found = (found[0], self._class_name(found[1], names, number))
                yield checked_entry(number, found, fields, self.place)
            if told is not None:
                told(number)

    def _class_name(self, label: Any, names: list[str], number: int) -> str:
        if not isinstance(label, int) or not 0 <= label < len(names):
            raise DataError(f"{self.place(number)}: the label is {label}, not one of {few(names)}; mend the data set")
        return names[label]

    def place(self, number: int) -> str:
        return f"{self.name}, row {number}" if number else self.name


def open_datasets(source: str) -> dict[str, Any]:
    """The splits of a data set; one that has none is "train".

    Errors:  DataError, one line: the package is not installed, there is no such data set, or it cannot be reached.
    """
    with importing("datasets", "datasets", f"{source} is a data set of Hugging Face, which needs", DataError):
        import datasets
    try:
        if source.startswith(PREFIX):
            name, _, config = source.removeprefix(PREFIX).partition(":")
            found = datasets.load_dataset(name, config or None)
        else:
            found = datasets.load_from_disk(str(Path(source).expanduser()))
    except Exception as error:  # of the network, of the hub, of files: each of another kind
        how = "; it is read from the internet, or from the cache of datasets" if source.startswith(PREFIX) else ""
        raise DataError(f"cannot open the data set {source}: {reason(error)}{how}") from error
    splits = dict(found) if isinstance(found, dict) else {"train": found}
    if not splits or not all(isinstance(split, datasets.Dataset) for split in splits.values()):
        raise DataError(f"{source} is not a data set with splits of rows; expected a Dataset or a DatasetDict")
    return splits


def corpus_shelf(source: str, text_field: str | None) -> tuple[DatasetShelf, str]:
    """The training split, and what to say of the others.

    Errors:  DataError as :func:`open_datasets`; if there is no training split, or no such field.
    """
    splits = open_datasets(source)
    if "train" not in splits and len(splits) > 1:
        raise DataError(f'{source} has the splits {few(splits)}; expected "train" among them')
    name = "train" if "train" in splits else next(iter(splits))
    require_field(source, splits[name], text_field, "text")
    assert text_field is not None
    others = [other for other in splits if other != name]
    note = f", split {name} (not read: {few(others)})" if others else ""
    return DatasetShelf(source, splits[name], text_field), note


def require_field(source: str, dataset: Any, field: str | None, noun: str) -> None:
    """Errors:  DataError, which names the fields that there are."""
    known = dataset.column_names
    if field is None:
        texts = [name for name, feature in dataset.features.items() if getattr(feature, "dtype", "") in STRINGS]
        shown = texts if noun == "text" else [name for name in known if name not in texts] or known
        example = noun if noun in shown or not shown else shown[0]
        raise DataError(
            f"{source} is a data set; name the field of the {noun}: data.{noun}_field={example} "
            f"(--{noun}-field {example}); it has {few(known)}"
        )
    if field not in known and field.partition(".")[0] not in known:
        raise DataError(f"{source} has no field {field!r}; it has {few(known)}")
