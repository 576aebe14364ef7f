"""What a file is by its content, whatever its name says: :func:`kind_of`."""

from __future__ import annotations

import csv
import json
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from statewise.errors import DataError, reading
from statewise.files.opening import unfolded
from statewise.files.walking import is_hidden, walk

HEAD = 1 << 16  # bytes that are looked at
TEXT_HEAD = 8192  # no NUL byte among so many first ones: text, as git and grep have it
LOOKED_AT = 64  # files of a folder
SEPARATORS = (",", ";", "\t", "|")
PLURAL = {
    "picture": "pictures",
    "sound": "sounds",
    "text": "texts",
    "table": "tables",
    "parquet": "Parquet files",
    "npz": ".npz files",
    "npy": ".npy files",
    "gzip": "gzip files",
    "zstd": "zstd files",
    "binary": "binary files",
}  # others are the same as one
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "picture"),
    (b"\xff\xd8\xff", "picture"),
    (b"GIF8", "picture"),
    (b"II*\0", "picture"),
    (b"MM\0*", "picture"),
    (b"fLaC", "sound"),
    (b"OggS", "sound"),
    (b"ID3", "sound"),
    *((b"\xff" + bytes([kind]), "sound") for kind in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2)),  # MP3 without a title
    (b"PAR1", "parquet"),
    (b"\x93NUMPY", "npy"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\xd0\xcf\x11\xe0", "excel"),
    (b"%PDF-", "pdf"),
    (b"SQLite format 3\0", "sqlite"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
NAMED = {
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".npy": "npy",
    ".png": "picture",
    ".jpg": "picture",
    ".jpeg": "picture",
    ".wav": "sound",
    ".flac": "sound",
    ".ogg": "sound",
}  # what the end of a name says
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
WORDS = {
    "json lines": "JSON lines (a document a line)",
    "json": "one JSON document; write it as JSON lines, an object a line",
    "table": "a table, cells with separators",
    "text": "plain text",
    "parquet": "Parquet",
    "picture": "a picture",
    "sound": "a sound",
    "npz": "arrays of numpy",
    "npy": "an array of numpy",
    "gzip": "compressed by gzip",
    "zstd": "compressed by zstd",
    "excel": "an Excel workbook; save the sheet as CSV",
    "utf-16": "text in UTF-16; save it as UTF-8",
    "empty": "empty",
    "binary": "nothing that is known here",
}  # others are the same as one, with "a" before it
RENAMED = {"json lines": ".jsonl", "table": ".csv", "parquet": ".parquet", "text": ".txt", "npz": ".npz", "npy": ".npy"}
RENAMED |= {kind: ending for ending, kind in COMPRESSED.items()}
JSON_OBJECT = re.compile(r'\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:)')
NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][+-]?\d+)?|nan|NaN|")


def kind_of(path: Path | str) -> str:
    """The kind of file at ``path``, by its first bytes.

    A file is "json lines" (each line a document), "json" (one document), "table" (lines of as many cells each), "text",
    "parquet", "npz", "npy", "picture", "sound", "gzip", "zstd", "bz2", "xz", "zip", "excel", "pdf", "sqlite", "utf-16",
    "empty", or "binary", which is anything else. A folder is "folder of pictures", "folder of sounds", "folder of
    texts", "folder of tables", "folder of json lines", and so on; "folder of pictures and texts" if it has several
    kinds, the most frequent one first, and "empty folder". Hidden files are ignored. 64 of the others, at any depth,
    are looked at, and one of each ending.

    Cost:    64 KB are read of a file.
    Errors:  DataError for what is not there or cannot be read, and for pipes and devices.
    """
    return _kind(Path(path), inside=False)


def kind_within(path: Path | str) -> str:
    """The same, but of what is compressed in a "gzip", "zstd", "bz2" or "xz": ``corpus.jsonl.zst`` is "json lines".

    Errors:  as :func:`kind_of`; DataError if what is compressed is damaged.
    """
    return _kind(Path(path), inside=True)


def in_words(kind: str) -> str:
    """ "JSON lines (a document a line)" of "json lines", for messages; with the usual way out where there is one."""
    return WORDS.get(kind, f"a {kind}")


def checked_kind(path: Path) -> str:
    """:func:`kind_within`, for who reads files by their names.

    Errors:  DataError if the name says that it is something else, as JSON lines that are named .csv; as
             :func:`kind_of`.
    """
    kind, ending = kind_of(path), path.suffix.lower()
    packed = COMPRESSED.get(ending)
    if packed is not None and kind != packed:
        raise DataError(f"{path} is named {ending}, but is {in_words(kind)}; rename it without {ending}")
    if kind in COMPRESSED.values():
        if packed is None and ending in NAMED:
            raise DataError(f"{path} is named {ending}, but is {in_words(kind)}; rename it to end in {RENAMED[kind]}")
        kind, ending = kind_within(path), Path(path.stem).suffix.lower()
    named = NAMED.get(ending)
    if named not in (None, kind):
        remedy = f"; rename it to end in {RENAMED[kind]}, or give another file" if kind in RENAMED else ""
        raise DataError(f"{path} is named {ending}, but is {in_words(kind)}{remedy}")
    return kind


def _kind(path: Path, inside: bool) -> str:
    with reading(path):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return _folder_kind(path, inside)
    if not stat.S_ISREG(mode):
        raise DataError(f"cannot read {path}: it is not a regular file; save its contents to a file")
    with reading(path), path.open("rb") as file:
        head = file.read(HEAD)
    kind = kind_of_bytes(head, path.name)
    if inside and kind in ("gzip", "zstd", "bz2", "xz"):
        with unfolded(path) as file:
            head = file.read(HEAD)
        kind = kind_of_bytes(head, path.stem)
    return _kind_of_zip(path) if kind == "zip" else kind


def kind_of_bytes(head: bytes, name: str = "") -> str:
    """The kind of a file that begins with ``head``. Its name tells only whether few lines of text are a table."""
    if not head:
        return "empty"
    for magic, kind in MAGIC:
        if head.startswith(magic):
            return kind
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] in (b"WAVE", b"WEBP"):
        return "sound" if head[8:12] == b"WAVE" else "picture"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "sound"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if b"\0" in head[:TEXT_HEAD]:
        bitmap = head.startswith(b"BM") and head[6:10] == bytes(4)
        return "picture" if bitmap else "tar" if head[257:262] == b"ustar" else "binary"
    return _kind_of_text(head.decode("utf-8-sig", "replace"), len(head) >= HEAD, name)


def _kind_of_text(text: str, is_cut: bool, name: str) -> str:
    lines = text.splitlines()
    if is_cut and len(lines) > 1:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        return "empty"
    kind = _kind_of_json(lines, is_cut)
    if kind is not None:
        return kind
    named = Path(name.lower()).suffix in (".csv", ".tsv")
    return "table" if separator_of(lines, few=named) is not None or _is_column(lines, named) else "text"


def _kind_of_json(lines: list[str], is_cut: bool) -> str | None:
    """Whether each line is a document, or all are one."""
    first = lines[0].strip()
    if first[0] not in '{["':
        return None
    try:
        values = [json.loads(line) for line in islice(lines, 2)]
    except (ValueError, RecursionError):
        if len(lines) == 1 and is_cut:  # a document longer than the head
            return "json lines" if JSON_OBJECT.match(first) else None
        whole = "\n".join(lines)
        begins = first in ("{", "[") or JSON_OBJECT.match(first) or re.match(r"\[\s*[\[{\"\d-]", first)
        return "json" if begins and (is_cut or _is_json(whole)) else None
    if all(isinstance(value, str) for value in values):
        return "json lines" if len(lines) > 1 else None
    if len(lines) == 1 and isinstance(values[0], list) and any(isinstance(one, (dict, list)) for one in values[0]):
        return "json"  # documents in a list, on one line
    return "json lines"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def separator_of(lines: list[str], *, few: bool = False) -> str | None:
    """What separates the cells of a table: one of , ; tab | that gives each line as many, at least two; None if it is
    not a table.

    few:  two lines are enough, or a first line alone, as for what is named .csv. Else there are three at least, and
          what is a comma or a semicolon in sentences, with a blank behind it, needs a column of numbers.

    >>> separator_of(["a;b", "1,5;2", "3;4"]), separator_of(["Well, he said", "No, he said", "Oh, he said"])
    (';', None)
    """
    found: dict[str, int] = {}
    for mark in SEPARATORS:
        try:
            rows = list(csv.reader(lines, delimiter=mark, strict=True))
        except csv.Error:  # the head may end within a cell in quotes
            rows = list(csv.reader(lines, delimiter=mark))[:-1]
        rows = [row for row in rows if row]
        widths = Counter(map(len, rows))
        if not rows or len(rows[0]) < 2 or len(rows) < (1 if few else 3):
            continue
        if few or (len(widths) == 1 and (mark in "\t|" or _is_tabular(rows))):
            found[mark] = sum(len(row) == len(rows[0]) for row in rows) * len(rows[0])
    return max(found, key=lambda mark: found[mark]) if found else None


def _is_tabular(rows: list[list[str]]) -> bool:
    spaced = all(cell.startswith(" ") for row in rows for cell in row[1:])
    columns = list(zip(*rows[1:]))
    if any(all(NUMBER.fullmatch(cell.strip()) for cell in column) and any(column) for column in columns):
        return True
    header = rows[0]
    named = all(0 < len(cell.strip()) <= 40 for cell in header) and len(set(header)) == len(header)
    return named and not spaced and not any(cell.startswith(" ") for cell in header)


def _is_column(lines: list[str], named: bool) -> bool:
    """Numbers, one a line, or several with blanks between, perhaps under names; and anything that is named .csv."""
    rows = [line.split() for line in lines]
    numeric = all(len(row) == len(rows[-1]) and all(map(NUMBER.fullmatch, row)) for row in rows[1:])
    return named or (len(lines) > 2 and numeric)


def _kind_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # damaged: who reads it says how
        return "npz" if path.suffix == ".npz" else "zip"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    return "excel" if "xl/workbook.xml" in names else "zip"


def _folder_kind(folder: Path, inside: bool) -> str:
    kinds = kinds_among([path for path in walk(folder) if not is_hidden(path)], inside=inside)
    return f"folder of {in_plural(kinds)}" if kinds else "empty folder"


def in_plural(kinds: Iterable[str]) -> str:
    """
    >>> in_plural(["text", "picture", "json lines"])
    'texts, pictures and json lines'
    """
    names = [PLURAL.get(kind, kind) for kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def kinds_among(files: Sequence[Path], *, inside: bool = False) -> dict[str, Path]:
    """The kinds of some files, the most frequent first, with the first file of each: of 64, spread over all, and one of
    each ending. Empty files have none.
    """
    spread = files[:: -(-len(files) // LOOKED_AT)] if files else []
    each_ending = {path.suffix.lower(): path for path in files}.values()
    kinds = {path: _kind(path, inside) for path in sorted({*spread, *each_ending}) if path.is_file()}
    first = {kind: path for path, kind in reversed(kinds.items()) if kind != "empty"}
    n = Counter(kinds.values())
    return {kind: first[kind] for kind in sorted(first, key=lambda kind: (-n[kind], kind))}
