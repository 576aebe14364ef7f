"""config.json of a checkpoint: what the model is, and the size and SHA-256 of every other file.

It also holds its own SHA-256, and is read only if it is byte for byte as we would write it. So no damage to it
goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch

from statewise.checkpoints.tensor_files import PICKLE_SUFFIXES, WEIGHT_SUFFIXES, dtype_name, refuse_pickle
from statewise.configuration import parse_json
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.errors import CheckpointError, ConfigError, excerpt, reading, retold
from statewise.models.base import ModelConfig
from statewise.models.registry import model_from_dict, model_to_dict

FORMAT_VERSION = 2  # 1, of Statewise 0.1.0: models did not say what is done to their raw data
CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
TRAINER_TENSORS = "trainer/state.safetensors"
TRAINER_DATA = "trainer/state.json"
FILES = (MODEL_FILE, TOKENIZER_FILE, *PUBLISHED_FILES, TRAINER_TENSORS, TRAINER_DATA)
TOKENIZER_KINDS = ("bytes", "tokenizers")
DTYPES = {dtype_name(t): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


class FileRecord(NamedTuple):
    """What a file has to be."""

    n_bytes: int
    sha256: str


class TokenizerRecord(NamedTuple):
    """The tokenizer a model was trained with."""

    kind: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What config.json says. ``dtype`` is that of the floating tensors, except of those in ``dtype_of``."""

    statewise_version: str
    model: ModelConfig
    dtype: torch.dtype
    dtype_of: Mapping[str, torch.dtype]
    tokenizer: TokenizerRecord | None
    files: Mapping[str, FileRecord]
    format_version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """The bytes of config.json."""
        data = {
            "format_version": FORMAT_VERSION,
            "statewise_version": self.statewise_version,
            "model": model_to_dict(self.model),
            "dtype": dtype_name(self.dtype),
            "dtype_of": {name: dtype_name(dtype) for name, dtype in self.dtype_of.items()},
            "tokenizer": self.tokenizer and self.tokenizer._asdict(),
            "files": {name: {"bytes": record.n_bytes, "sha256": record.sha256} for name, record in self.files.items()},
        }
        return encode_json({**data, "sha256": hashlib.sha256(encode_json(data)).hexdigest()})


def encode_json(data: Any) -> bytes:
    """The one way in which JSON is written here. ValueError for NaN and infinities, which JSON does not have."""
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode("ascii")


def record_file(path: Path) -> FileRecord:
    with open(path, "rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def read_manifest(folder: Path) -> Manifest:
    """config.json of a checkpoint folder; the other files have to be there, with their sizes.

    Errors:  CheckpointError for a folder that is not a checkpoint, a damaged or edited config.json, a newer format,
             an unknown part of a model, and a file that is missing, cut off, or outside of the folder.
    """
    path = folder / CONFIG_FILE
    _require_file(folder, CONFIG_FILE)
    try:
        with reading(path, CheckpointError):
            raw = path.read_bytes()
        data = parse_json(raw, str(path))
    except ConfigError as error:
        raise CheckpointError(f"{error}; the checkpoint is damaged") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} does not contain a JSON object; it is damaged, or belongs to something else")
    if "format_version" not in data:
        weights = any(file.suffix in (*WEIGHT_SUFFIXES, *PICKLE_SUFFIXES) for file in folder.iterdir())
        beside = (
            "" if weights else ", and there are no weights beside it: no safetensors, .bin, .pt, .ckpt or .gguf file"
        )
        raise CheckpointError(f"{path} was not written by Statewise (no format_version){beside}; give a whole model")
    version = data["format_version"]
    if type(version) is not int or version < 1:
        raise CheckpointError(
            f"{path} is damaged: format_version={excerpt(version)}, expected an integer of at least 1"
        )
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format_version {excerpt(version)}, from a newer Statewise "
            f"({excerpt(data.get('statewise_version'))}); this one reads up to {FORMAT_VERSION}. Upgrade statewise"
        )
    rest = {key: value for key, value in data.items() if key != "sha256"}
    try:
        intact = encode_json(data) == raw and data.get("sha256") == hashlib.sha256(encode_json(rest)).hexdigest()
    except ValueError:  # a number too large for a float has become an infinity
        intact = False
    if not intact:
        raise CheckpointError(
            f"{path} is damaged or was edited: its checksum does not match. "
            "To change a checkpoint, load it and save it under another name"
        )
    manifest = _decode(rest, path)
    for name, record in manifest.files.items():
        _require_size(folder, name, record)
    return manifest


def verify_file(folder: Path, name: str, record: FileRecord) -> Path:
    """The path of a file that has the size and the checksum it should have.

    Errors:  CheckpointError naming the file.
    """
    _require_size(folder, name, record)
    if record_file(folder / name) != record:
        raise CheckpointError(
            f"{folder / name} is damaged: its checksum does not match. Copy it again, or, in a run, remove {folder} "
            "to continue from the checkpoint before it"
        )
    return folder / name


def _decode(data: dict[str, Any], path: Path) -> Manifest:
    """Whoever can compute a checksum can write anything here, so it is checked like any input."""

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise CheckpointError(f"{path}: {what}")

    known = ("format_version", "statewise_version", "model", "dtype", "dtype_of", "tokenizer", "files")
    for name in known:
        require(name in data, f"the field {name!r} is missing")
    for name in data:
        require(name in known, f"unknown field {excerpt(name)}; known: {', '.join(known)}")
    dtype, dtype_of, tokenizer, files = data["dtype"], data["dtype_of"], data["tokenizer"], data["files"]
    require(isinstance(data["statewise_version"], str), "statewise_version is not a string")
    require(dtype in list(DTYPES), f"dtype={excerpt(dtype)} is unknown; use one of {list(DTYPES)}")
    require(isinstance(dtype_of, dict), "dtype_of is not an object")
    for name, value in dtype_of.items():
        require(
            value in list(DTYPES),
            f"dtype_of.{excerpt(name, quoted=False)}={excerpt(value)} is unknown; use one of {list(DTYPES)}",
        )
    if tokenizer is not None:
        fine = isinstance(tokenizer, dict) and tokenizer.keys() == {"kind", "fingerprint"}
        require(fine and tokenizer["kind"] in TOKENIZER_KINDS, f"tokenizer.kind is not one of {list(TOKENIZER_KINDS)}")
        require(isinstance(tokenizer["fingerprint"], str), "tokenizer.fingerprint is not a string")
    require(isinstance(files, dict), "files is not an object")
    for name, record in files.items():
        place = PurePosixPath(name.replace("\\", "/"))
        require(not place.is_absolute() and ".." not in place.parts, f"the file name {excerpt(name)} leaves the folder")
        require(
            place.suffix not in PICKLE_SUFFIXES, f"{excerpt(name)} is a pickle by its name, and those are never loaded"
        )
        require(name in FILES, f"unknown file {excerpt(name)}; known: {', '.join(FILES)}")
        fine = isinstance(record, dict) and record.keys() == {"bytes", "sha256"}
        require(
            fine and type(record["bytes"]) is int and isinstance(record["sha256"], str), f"files.{name} is malformed"
        )
    require(MODEL_FILE in files, f"{MODEL_FILE} is missing from files")
    require((TRAINER_DATA in files) == (TRAINER_TENSORS in files), "one of the two files of trainer/ is missing")
    carried = tokenizer is not None and tokenizer["kind"] == "tokenizers"
    require(
        carried == (TOKENIZER_FILE in files), f"{TOKENIZER_FILE} and the kind of the tokenizer contradict each other"
    )
    beside = [name for name in PUBLISHED_FILES if name in files]
    require(carried or not beside, f"{', '.join(beside)} belongs to a {TOKENIZER_FILE}, and there is none")
    with retold(CheckpointError, ConfigError):
        model = model_from_dict(data["model"], f"{path}: model")
    return Manifest(
        statewise_version=data["statewise_version"],
        model=model,
        dtype=DTYPES[dtype],
        dtype_of={name: DTYPES[value] for name, value in dtype_of.items()},
        tokenizer=tokenizer and TokenizerRecord(**tokenizer),
        files={name: FileRecord(record["bytes"], record["sha256"]) for name, record in files.items()},
        format_version=data["format_version"],
    )


def _require_file(folder: Path, name: str) -> int:
    """The size of a regular file in the folder.

    No link may lead out of it, since a checkpoint from a stranger is read with the reader's permissions; and opening
    a pipe would wait for ever.
    """
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        found = path.stat() if inside else None
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the checkpoint is incomplete") from error
    except (OSError, RuntimeError) as error:  # the latter: links in a circle
        raise CheckpointError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if found is None:
        raise CheckpointError(f"{path} is a link that leads out of the folder; put the file itself there")
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is not a file")
    return found.st_size


def _require_size(folder: Path, name: str, record: FileRecord) -> None:
    size, path = _require_file(folder, name), folder / name
    if name.endswith(".safetensors"):
        refuse_pickle(path)
    if size != record.n_bytes:
        raise CheckpointError(f"{path} is damaged: {size:,} bytes, expected {record.n_bytes:,}")
