"""Models of the Hugging Face hub by name, through ``huggingface_hub``: its cache, its settings, only what is needed."""

from __future__ import annotations

import re
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Any, NamedTuple

from statewise.checkpoints.convert.source import is_published, needed_files
from statewise.errors import CheckpointError, InputError, importing

PREFIX = "hub:"
NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(/(?P<file>[^@]+))?(@(?P<revision>.+))?")


class HubName(NamedTuple):
    """What "hub:owner/name/file@revision" says; the last two may be missing."""

    repository: str
    file: str | None
    revision: str | None


def parse_hub_name(source: str, revision: str | None = None) -> HubName:
    """Errors: InputError for a name that is none, that leads out of the model's folder, and for two revisions.

    >>> parse_hub_name("hub:state-spaces/mamba-130m@main")
    HubName(repository='state-spaces/mamba-130m', file=None, revision='main')
    """
    match = NAME.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise InputError(f"{source!r} is not a hub name; expected hub:owner/name or hub:owner/name@revision")
    if revision is not None and match["revision"] not in (None, revision):
        raise InputError(f"{source!r} and revision={revision!r} name two different revisions; give only one")
    name = HubName(match["repository"], match["file"], revision or match["revision"])
    for what, value in name._asdict().items():
        parts = [] if value is None else value.replace("\\", "/").split("/")
        if {"", ".", ".."} & {*parts} or any(PureWindowsPath(part).drive or not part.isprintable() for part in parts):
            raise InputError(
                f"{source!r}: the {what} {value!r} leads out of the model's folder; expected names between slashes"
            )
    return name


def fetch(source: str, revision: str | None = None) -> Path:
    """The folder in the hub's cache, or the file in it, with what a model needs: downloaded unless it is there.

    Safetensors are preferred to pickles. Where the hub cannot be asked, as with HF_HUB_OFFLINE=1, the cache is enough.

    Errors:  CheckpointError if the extra ``hub`` is not installed, for a name or revision that the hub does not have
             or does not show, and for one that is neither in the cache nor to be reached.
    """
    name = parse_hub_name(source, revision)
    hub = _library()
    errors = hub.errors
    try:
        listed = hub.HfApi().model_info(name.repository, revision=name.revision).siblings or []
        names = [file.rfilename for file in listed]
        if name.file is not None and name.file not in names:
            raise CheckpointError(f"{source}: there is no file {name.file} in {name.repository}")
        wanted = needed_files(names, source) if name.file is None else _beside(name.file, names, source)
        folder = Path(hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=wanted))
    except CheckpointError:
        raise
    except errors.GatedRepoError as error:
        raise CheckpointError(f"{source} is gated: accept its terms on the hub and log in (hf auth login)") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no model {name.repository}, or does not show it without a login") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"the model {name.repository} has no revision {name.revision!r}") from error
    except errors.HFValidationError as error:
        raise InputError(f"{source!r} is not a hub name: {' '.join(str(error).split())}") from error
    except Exception as error:  # of the network, whose library is the hub's own affair: then the cache, if it is there
        cached = _cached(hub, name)
        if cached is None or not (is_published(cached) if name.file is None else (cached / name.file).is_file()):
            raise _unreachable(hub, source, name.revision, error) from error
        folder = cached
    path = folder if name.file is None else folder / name.file
    if not path.exists():
        raise CheckpointError(f"{source}: {path} is not in the cache, and the hub cannot be reached; download it first")
    return path


def cached(repository: str) -> bool:
    """Whether the hub's cache holds a model of this name, so that ``hub:NAME`` needs no network. False without the
    extra ``hub``."""
    try:
        hub = _library()
    except CheckpointError:
        return False
    folder = _cached(hub, HubName(repository, None, None))
    return folder is not None and is_published(folder)


def _beside(file: str, names: list[str], source: str) -> list[str]:
    """A file, and what belongs to it of its folder."""
    folder, slash, own = file.rpartition("/")
    prefix = folder + slash
    inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return [prefix + name for name in needed_files(inside, source, own)]


def _cached(hub: ModuleType, name: HubName) -> Path | None:
    """The folder of the revision in the cache; it may hold a part of the files."""
    repository = Path(hub.constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}"
    revision = name.revision or "main"
    reference = repository / "refs" / revision
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    folder = repository / "snapshots" / commit
    return folder if folder.is_dir() else None


def _unreachable(hub: ModuleType, source: str, revision: str | None, error: Exception) -> CheckpointError:
    offline = hub.constants.is_offline_mode() or isinstance(error, hub.errors.OfflineModeIsEnabled)
    reason = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({_first_line(error)})"
    wanted = source if revision is None or source.endswith(f"@{revision}") else f"{source}@{revision}"
    return CheckpointError(
        f"{wanted} is not in the cache {hub.constants.HF_HUB_CACHE}, and {reason}; "
        "load it once with a network, or give a folder"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _library() -> Any:
    with importing("huggingface_hub", "hub", "names of the hub need", CheckpointError):
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    return huggingface_hub
