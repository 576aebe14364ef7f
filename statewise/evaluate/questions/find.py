"""Where the questions are: in a folder, or under a name of ``datasets``; and what to do if they are missing."""

from __future__ import annotations

import difflib
import io
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from statewise.errors import ConfigError, DataError, importing, reason, require_least
from statewise.evaluate.questions.blimp import FIELDS, SETS, blimp_task
from statewise.evaluate.questions.lambada import lambada_task
from statewise.evaluate.questions.question import QuestionTask
from statewise.evaluate.questions.question_file import open_question_file
from statewise.evaluate.questions.rows import Row, parse_rows, read_rows
from statewise.evaluate.questions.superglue import PROMPTS, superglue_task
from statewise.evaluate.questions.superglue_rows import FOLDERS
from statewise.files.opening import zip_members

GROUPS: dict[str, tuple[str, ...]] = {
    "superglue": tuple(PROMPTS),
    "blimp": tuple(f"blimp_{name}" for name in SETS),
    **{f"blimp_{field}": tuple(f"blimp_{name}" for name in names.split()) for field, names in FIELDS.items()},
}
TASKS = (*PROMPTS, "lambada", *GROUPS["blimp"])
SPLITS = {"validation": ("val.jsonl", "validation.jsonl"), "train": ("train.jsonl",)}
LAMBADA_FILES = ("lambada_test.jsonl", "lambada_test_en.jsonl", "lambada.jsonl")
GET_SUPERGLUE = (
    "curl -LO https://dl.fbaipublicfiles.com/glue/superglue/data/v2/{0}.zip && mkdir -p {1} && unzip {0}.zip -d {1}"
)
GET_LAMBADA = (
    "curl -L --create-dirs -o {}/lambada_test.jsonl "
    "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl"
)
GET_BLIMP = "git clone https://github.com/alexwarstadt/blimp {}/blimp"


def open_tasks(
    names: Sequence[str], folder: str | os.PathLike[str] | None = None, *, n_shots: int = 0, limit: int | None = None
) -> list[QuestionTask]:
    """The tasks with these names, each once, with their questions.

    names:  "boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", or "superglue" for all of them; "lambada";
            "blimp", "blimp_<field>" or "blimp_<set>"; or the path of a file of JSON lines
            (:func:`open_question_file`), which ends in .jsonl or .json
    folder: the folder with BoolQ/val.jsonl and so on, as published or in the columns of ``datasets``; with
            lambada_test.jsonl; BLiMP's files or its blimp.zip. None: the package ``datasets`` fetches them
    n_shots: whether the examples are needed as well
    limit:  the number of questions of each task, from the first

    Errors:  ConfigError for no name, an unknown name, or shots of a task without examples; DataError for a missing
             file, with the command that fetches it, and for a file with other contents.
    """
    if not names:
        raise ConfigError("no questions are named; give at least one of superglue, lambada, blimp, or a file.jsonl")
    require_least(ConfigError, n_shots=(n_shots, 0), limit=(limit, 1))
    expanded = [part for name in names for part in GROUPS.get(name, (name,))]
    for name in expanded:
        _check_name(name, n_shots)
    place = None if folder is None else Path(folder).expanduser()
    tasks, missing = [], {}
    for name in dict.fromkeys(expanded):
        try:
            tasks.append(_open(name, place, n_shots, limit))
        except _NotThereError as error:
            missing[name] = str(error)
        except _NotFetchedError as error:  # without a network each further attempt would take its time and fail too
            wanted = [name for name in dict.fromkeys(expanded) if not _is_file(name)]
            raise DataError(
                f"{error}; fetch the files yourself with: {_commands(wanted, None)}, and give their folder (--data-dir)"
            ) from error.__cause__
    if missing and place is not None:
        raise _missing(missing, place)
    known: dict[str, str] = {}
    for task in tasks:
        if task.name in known:
            raise ConfigError(f"{known[task.name]} and {task.source} are both called {task.name}; rename one of them")
        known[task.name] = task.source
    return tasks


class _NotThereError(DataError):
    """Files that are not in the folder, as "BoolQ/val.jsonl"."""


class _NotFetchedError(DataError):
    """What ``datasets`` did not give, and why."""


def _missing(missing: Mapping[str, str], folder: Path) -> DataError:
    """One line for all that is not in the folder, and how to get it. missing: of each task what was looked for."""
    what = list(missing.values())
    few = ", ".join(what[:8]) + (f" and {len(what) - 8} more" if len(what) > 8 else "")
    verb, them = ("is", "it") if len(what) == 1 else ("are", "them")
    where = str(folder) if folder.exists() else f"{folder}, which does not exist"
    into = folder.parent if folder.is_file() else folder
    return DataError(f"{few} {verb} not in {where}; get {them} with: {_commands(list(missing), into)}")


def _commands(names: Sequence[str], folder: Path | None) -> str:
    """What gets the files of these tasks into the folder, for a shell."""
    place = "DIR" if folder is None else shlex.quote(str(folder))
    official = [FOLDERS[name] for name in names if name in PROMPTS]
    commands = [GET_SUPERGLUE.format(official[0] if len(official) == 1 else "combined", place)] if official else []
    if "lambada" in names:
        commands.append(GET_LAMBADA.format(place))
    if any(name.startswith("blimp_") for name in names):
        commands.append(GET_BLIMP.format(place))
    return " && ".join(commands)


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() in (".jsonl", ".json")


def _check_name(name: str, n_shots: int) -> None:
    if not _is_file(name) and name not in TASKS:
        close = difflib.get_close_matches(name, [*TASKS, *GROUPS], 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"there is no task called {name!r}{hint}; known names: {', '.join(PROMPTS)} (all eight: superglue), "
            "lambada, blimp, blimp_<field or set>, and files of JSON lines (.jsonl)"
        )
    if n_shots and (name == "lambada" or name.startswith("blimp_")):
        raise ConfigError(
            f"{name} has no examples to put before a question; leave shots out, or ask this task by itself"
        )


def _open(name: str, folder: Path | None, n_shots: int, limit: int | None) -> QuestionTask:
    if _is_file(name):
        task = open_question_file(Path(name).expanduser())
        return _first(task, limit)
    if name == "lambada":
        rows, source = _lambada(folder)
        return _first(lambada_task(islice(rows, limit), source), limit)
    if name.startswith("blimp_"):
        rows, source = _blimp(name.removeprefix("blimp_"), folder)
        return blimp_task(name.removeprefix("blimp_"), islice(rows, limit), source)
    rows, source = _superglue(name, "validation", folder)
    examples = _superglue(name, "train", folder)[0] if n_shots else None
    # A row of the official files may be many questions: no more rows are needed than questions.
    return _first(superglue_task(name, islice(rows, limit), examples, source), limit)


def _first(task: QuestionTask, limit: int | None) -> QuestionTask:
    if limit is None or len(task.questions) <= limit:
        return task
    return replace(task, questions=task.questions[:limit])


def _superglue(name: str, split: str, folder: Path | None) -> tuple[Iterator[Row], str]:
    official = FOLDERS[name]
    if folder is None:
        return _by_name("aps/super_glue", "wsc.fixed" if name == "wsc" else name, split)
    wanted = {name, official.lower(), f"{name}.fixed"}
    below = sorted(path for path in _folders(folder) if path.name.lower() in wanted)
    for place in below:
        for file in SPLITS[split]:
            if (place / file).is_file():
                return read_rows(place / file), str(place / file)
    raise _NotThereError(f"{official}/{SPLITS[split][0]}")


def _folders(folder: Path) -> list[Path]:
    """Those in it, and those one level further down, where an archive may have been unpacked."""
    if not folder.is_dir():
        return []
    first = [path for path in folder.iterdir() if path.is_dir()]
    return [folder, *first, *(path for one in first for path in one.iterdir() if path.is_dir())]


def _lambada(folder: Path | None) -> tuple[Iterator[Row], str]:
    if folder is None:
        return _by_name("EleutherAI/lambada_openai", "default", "test")
    if folder.is_file():
        return read_rows(folder), str(folder)
    for place in (folder, folder / "lambada", folder / "data"):
        for file in LAMBADA_FILES:
            if (place / file).is_file():
                return read_rows(place / file), str(place / file)
    raise _NotThereError(LAMBADA_FILES[0])


def _blimp(name: str, folder: Path | None) -> tuple[Iterator[Row], str]:
    if folder is None:
        return _by_name("nyu-mll/blimp", name, "train")
    for place in (folder, folder / "data", folder / "blimp", folder / "blimp" / "data"):
        if (place / f"{name}.jsonl").is_file():
            return read_rows(place / f"{name}.jsonl"), str(place / f"{name}.jsonl")
    archive = folder if folder.is_file() else folder / "blimp.zip"
    if archive.is_file():
        return _from_archive(archive, f"{name}.jsonl"), f"{archive}, {name}.jsonl"
    raise _NotThereError(f"BLiMP's {name}.jsonl")


def _from_archive(archive: Path, file: str) -> Iterator[Row]:
    try:
        with zip_members(archive) as members:
            # An archive made on a Mac has a second file of the name, which is none of the data.
            inside = [name for name in members if name.rsplit("/", 1)[-1] == file and not name.startswith("__MACOSX/")]
            text = members[inside[0]]().decode("utf-8-sig") if inside else None
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(
            f"{archive} cannot be read for its {file} ({reason(error)}); get the files with: "
            f"{GET_BLIMP.format(shlex.quote(str(archive.parent)))}, and give that folder"
        ) from error
    if text is None:
        raise DataError(f"{archive} has no {file}; give BLiMP's own archive")
    yield from parse_rows(io.StringIO(text, newline=None), f"{archive}, {file}")


def _by_name(path: str, name: str, split: str) -> tuple[Iterator[Row], str]:
    """From the hub, as lm-eval has it."""
    source = f"{path} {name} {split}"
    with importing(
        "datasets", "eval", f"{path} is fetched by name, for no folder was given; that needs", _NotFetchedError
    ):
        import datasets
    try:
        with _quiet("datasets", "huggingface_hub"):  # of each of its attempts; what came of them is said below
            loaded = datasets.load_dataset(path, name, split=split)
    except Exception as error:  # without a network, a hub or a name it raises any of many classes
        why = f"{type(error).__name__}: {reason(error)}"
        raise _NotFetchedError(f"{source} cannot be fetched by datasets ({why})") from error
    return (Row(dict(values), f"{source}, row {i}") for i, values in enumerate(loaded)), source


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """These packages log errors alone."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
