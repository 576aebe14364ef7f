"""What is at a path that is not our checkpoint: the files of a published model, chosen by their names."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from statewise.checkpoints.atomic import identity
from statewise.checkpoints.convert.gguf_parts import beside, one_of_each
from statewise.checkpoints.folders import RUN_FILE
from statewise.checkpoints.manifest import CONFIG_FILE, TOKENIZER_FILE
from statewise.checkpoints.tensor_files import GGUF, SAFETENSORS, TORCH_SUFFIXES, WEIGHT_SUFFIXES, shown
from statewise.configuration import parse_json
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.conventions.published import read_text, special_texts, with_config_ids
from statewise.errors import CheckpointError, ConfigError, DataError, excerpt, reading, reason, retold
from statewise.files.limits import check_ids

INDEX = ".index.json"
OUR_TYPE = "statewise"  # what integrations.transformers calls a model of ours
CONFIG_FILES = (CONFIG_FILE, "params.json")  # the second is Codestral's, for its consolidated.safetensors
TOKENIZER_FILES = (TOKENIZER_FILE, "vocab.json", "merges.txt")  # the latter two: GPT-2's, before there was the first
# What training leaves beside the weights of a model
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt")
OUR_FIELDS = {"format_version", "statewise_version"}  # of our config.json; one of them may be damaged
PREFERRED = ("model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "model.pt")


class PublishedTokenizer(NamedTuple):
    """The text of a tokenizer.json, and the file that it is of or was made of. ``files`` are the texts of the files
    that say how the model is used, by their names (``conventions.published.FILES``)."""

    json: str
    file: Path
    files: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """A published model: ``weights`` is one file, or the index or one part of several; ``config`` the JSON beside it,
    or empty."""

    path: Path
    weights: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_file: Path | None = None

    @cached_property
    def tokenizer(self) -> PublishedTokenizer | None:
        """Its tokenizer.json, or one made of GPT-2's two files; None if there is neither. Only its reader checks it.

        Errors:  CheckpointError if they cannot be read.
        """
        if self.weights.suffix == GGUF:
            from statewise.checkpoints.convert.gguf import gguf_conventions, gguf_tokenizer

            found = gguf_tokenizer(self.weights)
            if found is not None:
                return PublishedTokenizer(found, self.weights, gguf_conventions(self.weights))
        folder = self.weights.parent
        present = {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
        for path in present.values():
            require_inside(folder, path)
        try:
            if TOKENIZER_FILE in present:
                text = present[TOKENIZER_FILE].read_text("utf-8")
                return PublishedTokenizer(text, present[TOKENIZER_FILE], self._published_files())
            if len(present) == len(TOKENIZER_FILES) - 1:
                files = self._published_files()
                made = _byte_level(present["vocab.json"], present["merges.txt"], files)
                return PublishedTokenizer(made, present["vocab.json"], files)
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read the tokenizer beside {self.path}: {reason(error)}") from error
        return None

    def _published_files(self) -> dict[str, str]:
        """None for a model of ours that ``integrations.transformers`` saved, unless it has its end tokens of others."""
        folder, found = self.weights.parent, {}
        if self.config.get("model_type") == OUR_TYPE and (
            self.config.get("document_token_id") is not None or self.config.get("eos_token_id") is None
        ):
            return {}
        for name in PUBLISHED_FILES:
            if (folder / name).is_file():
                require_inside(folder, folder / name)
                with retold(CheckpointError, DataError):
                    found[name] = read_text(folder / name)
        return with_config_ids(found, self.config)


def is_published(path: Path) -> bool:
    """Whether the path is to be read as somebody else's: a file of weights, or a folder of them without our config."""
    while True:
        before = identity(path)
        found = _looks_published(path)
        if identity(path) == before:  # else a writer of ours replaced it, and its config was away for a moment
            return found


def _looks_published(path: Path) -> bool:
    if path.is_dir():
        if (path / RUN_FILE).exists() or not _weights_in(path):
            return False
        config = path / CONFIG_FILE
        return not (config.exists() or config.is_symlink()) or _is_of_others(config)
    return path.is_file() and path.suffix in WEIGHT_SUFFIXES


def find_source(path: Path) -> Source:
    """The files of a published model in a folder, or the file with what lies beside it.

    Errors:  CheckpointError if there is none, if there are several, or for a config that cannot be read.
    """
    if path.is_dir():
        folder, name = path, choose_weights(_names_in(path), str(path))
        weights = path / name
        require_inside(folder, weights)
        if not weights.is_file():
            raise CheckpointError(f"{weights} is not a file")
    else:
        folder, weights = path.parent, path
    # Codestral's folder holds its model twice, each with a config of its own
    for config_name in reversed(CONFIG_FILES) if weights.name.startswith("consolidated.") else CONFIG_FILES:
        config_file = folder / config_name
        if weights.suffix != GGUF and config_file.is_file():
            require_inside(folder, config_file)
            config = read_json(config_file)
            if OUR_FIELDS & config.keys():
                raise CheckpointError(f"{path} is part of a checkpoint of Statewise; give its folder, {folder}")
            return Source(path, weights, config, config_file)
    return Source(path, weights)


def choose_weights(names: Collection[str], where: str) -> str:
    """Which of these files hold the weights: safetensors before others, a file before an index of several; of a GGUF
    model in several files the first.

    Errors:  CheckpointError if there is none, or if there are several that might be meant.
    """
    names = sorted(name for name in names if name not in NOT_WEIGHTS and not name.startswith((".", "rng_state")))
    for suffixes in ((SAFETENSORS,), TORCH_SUFFIXES, (GGUF,)):
        found = one_of_each([name for name in names if name.endswith(suffixes)])
        indices = [name for name in names if name.endswith(tuple(suffix + INDEX for suffix in suffixes))]
        for name in PREFERRED:
            if name in found:
                return name
            if name + INDEX in indices:
                return name + INDEX
        if len(indices) == 1 or len(found) == 1:
            return (indices or found)[0]
        if found:
            raise CheckpointError(f"{where} contains several models, {', '.join(found[:4])}; give one of these files")
    raise CheckpointError(f"{where} has no weights: no safetensors, .bin, .pt, .ckpt or .gguf file")


def needed_files(names: Collection[str], where: str, weights: str | None = None) -> list[str]:
    """What has to be fetched of a folder with these files: the weights, all shards if they are an index or a part, and
    JSON.

    weights: the file of them, if it is not to be chosen
    """
    top = [name for name in names if "/" not in name]
    weights = choose_weights(top, where) if weights is None else weights
    needed = [
        weights,
        *beside(weights, top),
        *(name for name in (*CONFIG_FILES, *TOKENIZER_FILES, *PUBLISHED_FILES) if name in top),
    ]
    if weights.endswith(INDEX):
        stem = PurePosixPath(weights.removesuffix(INDEX))
        needed += [name for name in top if name.startswith(f"{stem.stem}-") and name.endswith(stem.suffix)]
    return needed


def shards_of(index: Path) -> dict[str, list[str]]:
    """The tensors of each shard that an index of safetensors or .bin files names; shards lie in its folder.

    Errors:  CheckpointError for an index that is malformed, and a shard that is missing or outside of the folder.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f'{index} is not an index of shards: "weight_map" must give the file of each tensor')
    shards: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        shards.setdefault(file, []).append(tensor)
    for file in shards:
        place, windows = PurePosixPath(file.replace("\\", "/")), PureWindowsPath(file)
        if place.is_absolute() or windows.drive or ".." in place.parts:
            raise CheckpointError(f"{index}: the shard {excerpt(file)} leaves the folder; all shards must be in it")
        if shown(file) != file:
            raise CheckpointError(
                f"{index}: {shown(file)} is not the name of a shard; expected one such as model-00001.safetensors"
            )
        if not (index.parent / file).is_file():
            raise CheckpointError(f"{index.parent / file} is missing; {index.name} lists it as a shard")
        require_inside(index.parent, index.parent / file)
    return shards


def require_inside(folder: Path, path: Path) -> None:
    """CheckpointError if the path is a link that leads out of the folder.

    The cache of ``huggingface_hub`` is made of links, models--owner--name/snapshots/REVISION/FILE to ../../blobs: in
    such a folder, and those in it, links may lead there.
    """
    try:
        resolved = path.resolve(strict=path.is_symlink())
    except (OSError, RuntimeError) as error:  # the latter: a loop, before Python 3.13
        raise CheckpointError(f"{path} is a broken link; put the file itself there") from error
    allowed = [folder.resolve()]
    for snapshots in folder.absolute().parents:
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            allowed.append((snapshots.parent / "blobs").resolve())
    if not any(resolved.is_relative_to(place) for place in allowed):
        raise CheckpointError(f"{path} is a link that leads out of the folder; put the file itself there")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file that others wrote. It may contain Infinity: transformers wrote limits this way until
    2025.

    Errors:  CheckpointError for a file that cannot be read, or is not a JSON object.
    """
    with reading(path, CheckpointError), retold(CheckpointError, ConfigError):
        data = parse_json(path.read_bytes(), str(path), constants=True)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} does not contain a JSON object")
    return data


def _is_of_others(config: Path) -> bool:
    """Whether config.json is JSON that we did not write; what cannot be read may be ours, damaged."""
    try:
        return config.is_file() and not OUR_FIELDS & read_json(config).keys()  # a pipe would be waited for
    except CheckpointError:
        return False


def _weights_in(folder: Path) -> bool:
    suffixes = (*WEIGHT_SUFFIXES, *(suffix + INDEX for suffix in WEIGHT_SUFFIXES))
    return any(name.endswith(suffixes) for name in _names_in(folder))


def _names_in(folder: Path) -> list[str]:
    with reading(folder, CheckpointError), contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []  # a writer of ours is about to replace it


def _byte_level(vocabulary: Path, merges: Path, files: Mapping[str, str]) -> str:
    """GPT-2's tokenizer as a tokenizer.json: its vocabulary, its merges, bytes as letters, its special tokens, of which
    OPT puts one before every text. files: the texts of those that name them"""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocab = read_json(vocabulary)
    lines = merges.read_text("utf-8").splitlines()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if not all(len(pair) == 2 for pair in pairs) or not all(type(index) is int for index in vocab.values()):
        raise CheckpointError(f"{vocabulary} and {merges.name} are not a tokenizer like GPT-2's")
    with retold(CheckpointError, DataError):
        check_ids(vocabulary, vocab, vocabulary.stat().st_size)  # first: the library writes a line for every gap
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(left, right) for left, right in pairs]))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{vocabulary} and {merges.name} do not fit together ({reason(error)})") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    with retold(CheckpointError, DataError):
        named, begins = special_texts(files, vocabulary.parent)
    tokenizer.add_special_tokens([name for name in dict.fromkeys(("<|endoftext|>", *named.values())) if name in vocab])
    begin = named.get("bos_token", "")
    if begins and begin in vocab:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"], pair=[begin, "$A", "$B"], special_tokens=[(begin, vocab[begin])]
        )
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
