"""What is at a path: a checkpoint, which may be replaced while it is read; or something else, and then what."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from statewise.checkpoints.atomic import identity, locate
from statewise.checkpoints.manifest import CONFIG_FILE, Manifest, read_manifest
from statewise.checkpoints.tensor_files import PICKLE_SUFFIXES, WEIGHT_SUFFIXES, refuse_pickle
from statewise.errors import CheckpointError

Result = TypeVar("Result")
RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
EXPORTED = (".pt2", ".onnx")  # what ``statewise export`` writes for other runtimes
HUB_FORM = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# A reader starts again when a writer has replaced the folder under it, which a healthy writer does seldom.
MAX_READS = 1000


def read_checkpoint(folder: str | os.PathLike[str], read: Callable[[Path, Manifest], Result]) -> Result:
    """``read(path, manifest)``, again if a writer put another checkpoint in place meanwhile.

    What is read is of one checkpoint: its path, unlike an open folder, may lead to another one from file to file.
    """
    target = Path(folder)
    for _ in range(MAX_READS):
        path = locate(target)
        before = identity(path)
        try:
            require_checkpoint(path)
            result = read(path, read_manifest(path))
        except (CheckpointError, OSError) as error:
            if identity(locate(target)) != before:
                continue
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        if identity(path) == before:
            return result
    raise CheckpointError(f"cannot read {target}: other processes keep replacing it; try again when they are done")


def require_checkpoint(folder: Path) -> None:
    """CheckpointError that says what is there instead, unless it is a folder with a config.json."""
    if not folder.exists():
        what = "file" if folder.suffix in WEIGHT_SUFFIXES else "folder"
        raise CheckpointError(f"there is no checkpoint at {folder}: no such {what}{_hub_hint(folder) or _near(folder)}")
    if not folder.is_dir():
        raise _not_a_folder(folder)
    if (folder / CONFIG_FILE).exists() or (folder / CONFIG_FILE).is_symlink():
        return
    if (folder / RUN_FILE).exists():
        raise CheckpointError(
            f"{folder} is a run folder; give one of its checkpoints, such as {folder / CHECKPOINTS / 'step-...'}, "
            'or what statewise.checkpoints.resolve(folder, "best") finds'
        )
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        raise CheckpointError(f"{folder} is empty; expected a checkpoint: a folder with a {CONFIG_FILE}")
    for name in names:
        if Path(name).suffix in PICKLE_SUFFIXES:
            refuse_pickle(folder / name)
    inside = [
        folder / name for name in names if any((folder / name / file).exists() for file in (RUN_FILE, CONFIG_FILE))
    ]
    hint = f"; there are models inside: give {' or '.join(map(str, inside[:3]))}" if inside else ""
    raise CheckpointError(f"{folder} is not a checkpoint: it has no {CONFIG_FILE}{hint}")


def _near(path: Path) -> str:
    """The folder or file beside it whose name is nearest."""
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _hub_hint(path: Path) -> str:
    """For what looks like owner/name, where there is no folder of the owner."""
    name = path.as_posix()
    if not HUB_FORM.fullmatch(name) or path.parent.exists():
        return ""
    return f"; if you mean the model of the Hugging Face hub, give hub:{name}"


def _not_a_folder(path: Path) -> CheckpointError:
    if not path.is_file():  # reading a pipe would wait for ever
        return CheckpointError(f"{path} is a pipe, a socket or a device; expected a folder or an ordinary file")
    if path.suffix in EXPORTED:
        return CheckpointError(
            f"{path} is an exported step, which cannot be loaded; give the model that it was exported from"
        )
    refuse_pickle(path)
    if path.suffix in WEIGHT_SUFFIXES:  # where a checkpoint of ours is needed
        return CheckpointError(f"{path} is a file; a checkpoint is a folder with a {CONFIG_FILE}")
    return CheckpointError(
        f"{path} is not a model: expected a file that ends in {', '.join(WEIGHT_SUFFIXES)}, or a folder, such as a "
        f"checkpoint with its {CONFIG_FILE}"
    )


def require_replaceable(path: Path, overwrite: bool) -> None:
    """Only a checkpoint may be replaced, and only one with nothing of somebody else's in it."""
    if not path.is_dir() or not (path / CONFIG_FILE).exists():
        what = "a folder that is not a checkpoint" if path.is_dir() else "a file"
        raise CheckpointError(f"cannot save {path}: {what} exists already and is never replaced; give another name")
    if not overwrite:
        raise CheckpointError(f"cannot save {path}: a checkpoint exists already; give another name, or overwrite=True")
    try:
        files = read_manifest(path).files
    except CheckpointError as error:
        raise CheckpointError(f"cannot overwrite {path}: {error}. Remove it yourself, or give another name") from error
    ours = {Path(CONFIG_FILE), *map(Path, files)}
    ours |= {parent for file in ours for parent in file.parents}
    there = (Path(at, name).relative_to(path) for at, folders, names in os.walk(path) for name in (*folders, *names))
    if foreign := sorted(entry.as_posix() for entry in there if entry not in ours):
        raise CheckpointError(
            f"cannot overwrite {path}: there is also {foreign[0]!r} in it; move it, or give another name"
        )
