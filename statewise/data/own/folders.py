"""Folders whose subfolders are classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from statewise.data.own.known import NOTHING, Known
from statewise.data.own.targets import NOT_KNOWN
from statewise.data.splits import SPLITS
from statewise.errors import DataError, excerpt, few
from statewise.files.sniffing import NAMED, in_words, kind_of, kinds_among
from statewise.files.walking import is_about, is_hidden, walk

SPLIT_NAMES = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
KINDS = {"picture": "pictures", "sound": "sounds"}
TEXTS = {"text": "texts"}


@dataclass(frozen=True)
class ClassFolder:
    """kind: "pictures", "sounds" or "texts"; classes: sorted, by number where all are numbers; splits: the files of
    each and their classes, "train" alone where the folder has no splits; passed_over: in words, "" if nothing was.
    """

    kind: str
    classes: tuple[str, ...]
    splits: dict[str, list[tuple[Path, int]]]
    passed_over: str


def find_classes(folder: Path, kinds: Mapping[str, str] = KINDS, known: Known = NOTHING) -> ClassFolder:
    """The files of a folder by the names of its subfolders, at any depth; above these there may be "train",
    "validation" and "test" (also "training", "val", "valid", "dev", "testing").

    kinds: KINDS or TEXTS, which files are looked for
    known: what a trained model says: the subfolders are of its classes, not all of which have to be there

    Hidden files are skipped, and files that describe the folder, such as README.txt and LICENSE; among texts only those
    above the classes.

    Errors:  DataError, which names the file, for one that lies in no class; for other kinds of files; for fewer than
             two classes, or one that the model does not know.
    """
    every, n_hidden = _visible(folder)
    about = {path for path in every if is_about(path) and (kinds is KINDS or path.parent == folder)}
    files = [path for path in every if path not in about] or every
    kind = _kind(folder, files, kinds)
    if known.files is not None and known.files.kind != kind:
        raise DataError(f"{folder} holds {kind}, but this model was trained on {known.files.kind}; give such a folder")
    parts = [path.relative_to(folder).parts for path in files]
    has_splits = all(names[0].lower() in SPLIT_NAMES and len(names) > 1 for names in parts)
    if has_splits and all(len(names) == 2 for names in parts):
        has_splits = False  # two classes that are called so
    depth = 1 if has_splits else 0
    for path, names in zip(files, parts):
        if len(names) < depth + 2:
            if other := wrong_kind(path, kind):
                raise other
            raise DataError(f"{path} is not in a folder of a class; move it into one, or out")
    classes = _sorted({names[depth] for names in parts})
    if known.classes:
        if unknown := [name for name in classes if name not in known.classes]:
            raise DataError(f"{folder} has the class {excerpt(unknown[0])}, {NOT_KNOWN.format(few(known.classes))}")
        classes = known.classes
    elif len(classes) < 2:
        raise DataError(f"{folder} has only the class {few(classes)}; expected two classes or more, each a folder")
    number = {name: i for i, name in enumerate(classes)}
    splits: dict[str, list[tuple[Path, int]]] = {}
    for path, names in zip(files, parts):
        split = SPLIT_NAMES[names[0].lower()] if has_splits else "train"
        splits.setdefault(split, []).append((path, number[names[depth]]))
    if known.classes and len(splits) == 1:  # nobody has to divide what is only to be scored
        splits = {"train": next(iter(splits.values()))}
    if "train" not in splits:
        raise DataError(f"{folder} has {few(splits)} but no train; call the folder of the training files train")
    passed = [f"{n_hidden:,} hidden"] if n_hidden else []
    passed += [path.relative_to(folder).as_posix() for path in every if path in about]
    passed_over = f"skipped {few(passed)}" if passed else ""
    return ClassFolder(kind, classes, {name: splits[name] for name in SPLITS if name in splits}, passed_over)


def files_within(path: Path) -> list[Path]:
    """A file itself, or what is not hidden in a folder, at any depth, by name.

    Errors:  DataError where there is nothing.
    """
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"there is no file or folder {path}")
        return [path]
    files, _ = _visible(path)
    return files


def media_within(path: Path) -> list[Path]:
    """The same for pictures and sounds: without files that describe the folder, such as README.txt."""
    files = files_within(path)
    return [file for file in files if not is_about(file)] or files


def wrong_kind(path: Path, expected: str) -> DataError | None:
    """What is wrong with a file that cannot be read as "pictures", "sounds" or "texts": that it is of another kind;
    None if it is not."""
    kind = kind_of(path)
    if (KINDS | TEXTS).get(kind) == expected:
        return None
    if (KINDS | TEXTS).get(NAMED.get(path.suffix.lower(), "")) == expected:
        return DataError(f"{path} is called {path.suffix}, but is {in_words(kind)}; replace it, or move it out")
    return DataError(f"{path} is {in_words(kind)}, among {expected}; move it out")


def _visible(folder: Path) -> tuple[list[Path], int]:
    files, n_hidden = [], 0
    for path in walk(folder):
        if is_hidden(path):
            n_hidden += 1
        else:
            files.append(path)
    if not files:
        raise DataError(f"{folder} has no files{f', but {n_hidden:,} hidden ones' if n_hidden else ''}")
    return sorted(files, key=lambda path: path.relative_to(folder).parts), n_hidden


def _kind(folder: Path, files: list[Path], known: Mapping[str, str]) -> str:
    kinds = kinds_among(files, inside=known is TEXTS)
    first = next(iter(kinds), None)
    what = "empty files" if first is None else f"{in_words(first)}: {kinds[first].name}"
    if first is not None and first in known:
        return known[first]
    if known is TEXTS:
        raise DataError(f"{folder} has no texts in folders for classes, but {excerpt(what, quoted=False)}")
    if first == "text":
        raise DataError(f"{folder} holds texts, but source 'files' reads numbers; use LabelledTextDataConfig for texts")
    raise DataError(
        f"{folder} has no pictures and no sounds, but {excerpt(what, quoted=False)}; for a table, give the file itself"
    )


def _sorted(names: set[str]) -> tuple[str, ...]:
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
