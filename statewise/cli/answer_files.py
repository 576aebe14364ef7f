"""Answers of a model, on standard output or in a file of --out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statewise.cli.options import refuse_existing

if TYPE_CHECKING:
    from statewise.predict import Answers


def require_answer_file(out: Path, overwrite: bool) -> None:
    """Checks --out before the work begins.

    Errors:  ConfigError for an unknown ending, for a file that exists, and for a place that you may not write to.
    """
    from statewise.checkpoints.atomic import require_place
    from statewise.predict.files import require_format

    require_format(out)
    require_new(out, overwrite)
    require_place(out)


def require_new(out: Path, overwrite: bool) -> None:
    """Errors:  ConfigError for a file that exists, unless it may be replaced."""
    if out.exists() and not overwrite:
        refuse_existing(out)


def require_other_than(out: Path, flag: str, *data: str | Path | None) -> None:
    """Checks before the work that no answer replaces the data, by whatever name or link: --overwrite does not allow it.

    Errors:  ConfigError if ``out``, which ``flag`` gives, is one of the files that are read, or a file within one of
             the folders.
    """
    from statewise.errors import ConfigError

    for given in data:
        place = None if given is None else Path(given).expanduser()
        if place is None or not out.exists() or not place.exists():
            continue
        real = out.resolve()
        if out.samefile(place) or (place.is_dir() and real.is_relative_to(place.resolve())):
            what = "the data that are read" if out.samefile(place) else f"a file of {place}, which is read"
            raise ConfigError(f"{flag} {out} is {what}, which would be lost; give another name")


def write_answers(batches: Iterable[Answers], out: Path | None, overwrite: bool) -> None:
    """As JSON lines on standard output, or in a file, which appears under its name complete, or not at all."""
    from statewise.checkpoints.atomic import write_file
    from statewise.predict.files import writer

    if out is None:
        for answers in batches:
            print_answers(answers)
        return

    def write(hidden: Path) -> None:
        with writer(hidden) as add:
            for answers in batches:
                add(answers)

    write_file(out, 0, write, None if overwrite else refuse_existing)


def print_answers(answers: Answers, more: dict[str, Any] | None = None) -> None:
    """``more``: for a stream, the columns that replace the row's number."""
    from statewise.files.json_lines import json_line

    for row in answers.rows():
        if more is not None:
            row.pop("row")
            row = {**more, **row}
        print(json_line(row, sys.stdout.encoding), flush=more is not None)
