"""Series of the UCR and UEA archives, in the .ts format: those bundled with aeon, and those of any folder.

The files are read here: aeon is found and never imported, which would take seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statewise.data.sequences import Found, Rows, join
from statewise.errors import DataError, excerpt, few, package_folder
from statewise.files.opening import read_file

MOST = float(np.finfo(np.float32).max)  # of a target


class _Series(NamedTuple):
    sequences: list[np.ndarray]  # (length, channels) float32
    labels: list[str]  # as written
    is_class: bool  # or a real target


def find_ucr(name: str, folder: Path | None) -> Found:
    """A problem with its official training and test rows. Channels may be many, and the lengths of the rows unlike.

    Classes are the test's and the training's labels in sorted order (numbers by value). Problems with ``@targetLabel``
    are regressions.

    Source:  Dau et al. 2019, arXiv:1810.07758 (UCR); Bagnall et al. 2018, arXiv:1811.00075 (UEA)
    Errors:  DataError if a file is missing, is not in the format, has missing values or time stamps, or a label that
             its ``@classLabel`` does not list.
    """
    where = _folder_of(name, folder)
    train, test = (read_ts(where / f"{name}_{part}.ts") for part in ("TRAIN", "TEST"))
    if train.is_class != test.is_class or train.sequences[0].shape[1] != test.sequences[0].shape[1]:
        raise DataError(f"{where}: {name}_TRAIN.ts and {name}_TEST.ts differ in their channels or kind of target")
    classes: tuple[str, ...] = ()
    if train.is_class:
        classes = tuple(sorted({*train.labels, *test.labels}, key=_by_value))
        numbers = {label: i for i, label in enumerate(classes)}
    rows: list[Rows] = []
    for part in (train, test):
        if part.is_class:
            targets = np.array([numbers[label] for label in part.labels], np.int64)
        else:
            targets = np.array([[float(label)] for label in part.labels], np.float32)
        rows.append(join(part.sequences, targets))
    return Found(f"ucr:{name}", rows[0], rows[1], classes, "none", ("the archive's own training and test rows",))


def _folder_of(name: str, folder: Path | None) -> Path:
    if folder is not None:
        if folder.is_file():
            raise DataError(f"data.folder={str(folder)!r} is a file; give its folder")
        for where in (folder / name, folder):
            if (where / f"{name}_TRAIN.ts").is_file():
                return where
        raise DataError(
            f"there is no series {name} in {folder}: looked for {name}_TRAIN.ts and {name}/{name}_TRAIN.ts; get the "
            "problem from timeseriesclassification.com, and set data.folder to its folder"
        )
    purpose = f"ucr:{name} is looked for in data.folder, which is not set, or among the series bundled with"
    bundled = package_folder("aeon", "tasks", purpose, DataError) / "datasets" / "data"
    if (bundled / name / f"{name}_TRAIN.ts").is_file():
        return bundled / name
    known = sorted(path.parent.name for path in bundled.glob("*/*_TEST.ts") if path.stem == f"{path.parent.name}_TEST")
    raise DataError(
        f"aeon bundles no series {name}, only {', '.join(known)}; for others set data.folder to a folder with "
        f"{name}_TRAIN.ts and {name}_TEST.ts"
    )


def read_ts(path: Path) -> _Series:
    """The rows of a .ts file: ``channel:channel:...:label``, each channel its values between commas."""
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    header: dict[str, list[str]] = {}
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line[0] in "#%":
            continue
        if "@data" in header:
            rows.append((number, line))
        elif line[0] == "@":
            name, *words = line.split()
            header[name.lower()] = words
        else:
            raise DataError(
                f"{path}, line {number}: expected a line that begins with @ before @data; is it a .ts file?"
            )
    timed, *kinds = (
        (header.get(name) or ["false"])[0].lower() == "true" for name in ("@timestamps", "@classlabel", "@targetlabel")
    )
    if timed:
        raise DataError(f"{path} has time stamps, which are not read; write it with @timeStamps false")
    if not any(kinds) or not rows:
        raise DataError(
            f"{path} has {'no labels' if rows else 'no rows'}; expected @classLabel true and rows after @data"
        )
    listed = {_key(label): label for label in header["@classlabel"][1:]} if kinds[0] else {}
    sequences, labels = [], []
    for number, line in rows:
        place = f"{path}, line {number}"
        *channels, label = (part.strip() for part in line.split(":"))
        if not channels or not label or "," in label:
            raise DataError(f"{place}: there is no label after the values; expected channel:...:label")
        if listed and _key(label) not in listed:
            raise DataError(f"{place}: the label {excerpt(label)} is not one of @classLabel: {few(listed.values())}")
        if not kinds[0] and not _is_finite(label, MOST):
            raise DataError(f"{place}: the target {excerpt(label)} is not a number")
        sequences.append(_read_channels(place, channels))
        labels.append(listed.get(_key(label), label))
        if len(channels) != sequences[0].shape[1]:
            raise DataError(f"{place}: {len(channels)} channels, but the first row has {sequences[0].shape[1]}")
    return _Series(sequences, labels, kinds[0])


def _read_channels(place: str, channels: list[str]) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # an infinite value is refused below
            values = [np.array(channel.split(","), np.float32) for channel in channels]
        sequence = np.stack(values, 1)
    except ValueError as error:
        raise DataError(f"{place}: {_fault(channels)}") from error
    if not np.isfinite(sequence).all():
        raise DataError(f"{place}: a missing or infinite value; fill it in, or use another problem")
    return sequence


def _fault(channels: list[str]) -> str:
    """What is wrong with channels that are not numbers, or of different lengths."""
    for i, channel in enumerate(channels, 1):
        if not channel:
            return f"channel {i} has no values; each series needs at least one"
        for k, value in enumerate(channel.split(","), 1):
            if value.strip() == "?":
                return f"a missing value, the {k}. of channel {i}; fill it in, or use another problem"
            try:
                float(value)
            except ValueError:
                return f"value {k} of channel {i}, {excerpt(value.strip())}, is not a number"
    return f"its channels have different lengths: {few(str(channel.count(',') + 1) for channel in channels)}"


def _key(label: str) -> float | str:
    """Equal for two spellings of one label: "1" and "1.0", "Walking" and "walking"."""
    return float(label) if _is_finite(label) else label.lower()


def _is_finite(text: str, largest: float = sys.float_info.max) -> bool:
    try:
        return abs(float(text)) <= largest
    except ValueError:
        return False


def _by_value(label: str) -> tuple[bool, float, str]:
    return (False, float(label), label) if _is_finite(label) else (True, 0.0, label)
