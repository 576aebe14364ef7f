"""metrics.jsonl: one JSON object a line, only ever appended to, or cut back to a checkpoint's step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from statewise.checkpoints.atomic import write_file
from statewise.errors import CheckpointError


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a metrics file in order. A last line that a killed run left unfinished is not there.

    Errors: CheckpointError where there is no such file, and for a damaged line before the last, with its number.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path}; give a run folder, which has a metrics.jsonl") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = _parse(line)
        except ValueError as error:
            if number == len(lines):  # nothing after the last newline, or half a line
                break
            raise CheckpointError(f"{path}, line {number}, is not a line of metrics ({error})") from None
        records.append(record)
    return records


def cut_metrics(path: Path, step: int) -> Path | None:
    """Drops what was written after ``step``, in one rename: what a run did beyond its last checkpoint is done again.

    A file with a damaged line before the last is first kept under another name, which is returned; what can be read of
    it stays.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    records, n_damaged = [], 0
    for number, line in enumerate(lines, 1):
        try:
            records.append(_parse(line))
        except ValueError:
            n_damaged += number < len(lines)  # the last one is only unfinished
    kept_aside = keep_aside(path, "damaged") if n_damaged else None
    write_bytes(path, b"".join(_line(record) for record in records if record["step"] <= step))
    return kept_aside


def keep_aside(path: Path, why: str) -> Path:
    """A copy beside ``path``, called for example metrics.jsonl.damaged, or metrics.jsonl.damaged-2 if that is there."""
    aside, number = path.with_name(f"{path.name}.{why}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{number}")
    write_bytes(aside, path.read_bytes())
    return aside


def write_bytes(path: Path, content: bytes) -> None:
    """The file with this content, all at once.

    Errors: CheckpointError if the disk does not take it; what was there before is then as it was.
    """

    def write(aside: Path) -> None:
        aside.write_bytes(content)

    write_file(path, len(content), write)


class MetricsFile:
    """Appends records to a file, each whole and at once. Close it, or use it in a ``with``.

    damaged: where a file with damaged lines was kept, None if there were none; see :func:`cut_metrics`.

    Errors: CheckpointError where the disk does not take them.
    """

    def __init__(self, path: Path, *, keep_to_step: int) -> None:
        self.path = path
        self.damaged = cut_metrics(path, keep_to_step)
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise _unwritable(path, error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk took only part of a line")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def sync(self) -> None:
        """Returns when what was written is on the disk: before the checkpoint that counts on it."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NoMetrics:
    """Used instead of a :class:`MetricsFile` where another process writes it."""

    damaged: Path | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        pass

    def sync(self) -> None:
        pass


def _parse(line: bytes) -> dict[str, Any]:
    """ValueError unless it is a record: also for bytes that are not UTF-8, and NaN, which is not JSON."""
    record = json.loads(line, parse_constant=_refuse_constant)
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise ValueError("not an object with a step")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _unwritable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot write {path}: {error.strerror or error}")
