"""What a published model is, from its config and the headers of its files, before any number is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.checkpoints.convert.entries import names_alone, read_entries
from statewise.checkpoints.convert.read import recognise
from statewise.checkpoints.convert.source import Source, find_source
from statewise.checkpoints.convert.weights import read_weights
from statewise.checkpoints.empty import expected_shapes
from statewise.checkpoints.tensor_files import GGUF, dtype_name
from statewise.errors import CheckpointError, ConfigError, retold
from statewise.models.base import ModelConfig

# Where configs of others say what kind each layer is: a list of names, or a text with a letter for each
KIND_FIELDS = ("layer_types", "layers_block_type", "block_types", "layer_block_types", "hybrid_override_pattern")
COUNT_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}  # of Nemotron-H
NUMBERED = re.compile(r"(?:^|\.)(\d+)\.([^.]+)")  # of a tensor in a layer: its number, and what it belongs to there


@dataclass(frozen=True)
class Headers:
    """format, config: None for a model that is not read, and then ``reason`` says why
    architecture: as its own files call it
    published:    what config.json, or the header of a GGUF file, says
    shapes:       of its tensors, by their names    types: what each is stored in
    """

    source: Source
    format: str | None
    config: ModelConfig | None
    reason: str | None
    architecture: str | None
    published: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]

    def layers(self) -> list[dict[str, Any]]:
        """The layers of a model that is not read: for each its ``kind``, if the config says it, the names of what it
        ``holds``, and what is ``similar``: which configs of ours are called so in models that are read."""
        holds: dict[int, set[str]] = {}
        for name in self.shapes:
            if part := NUMBERED.search(name):
                holds.setdefault(int(part[1]), set()).add(part[2])
        kinds, known = kinds_of(self.published), names_of_parts()
        n_layers = max(len(kinds), len(holds))
        return [
            {
                "layer": i,
                "kind": kinds[i] if i < len(kinds) else None,
                "holds": (found := sorted(holds.get(i, ()))),
                "similar": {name: known[name] for name in found if name in known},
            }
            for i in range(n_layers)
        ]


def read_headers(path: Path) -> Headers:
    """Errors:  CheckpointError if there is no published model, or if its files cannot be read at all."""
    source = find_source(path)
    if source.weights.suffix == GGUF:
        return _of_gguf(source)
    published, tensors = read_weights(source)  # which maps them
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    types = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
    name, config, reason = None, None, None
    try:
        found = recognise(source, published, frozenset(tensors))
        name = found.name
        with names_alone(), retold(CheckpointError, CheckpointError, ConfigError, where=f"{path}, read as {name}: "):
            config, _ = found.read(published, tensors)
    except CheckpointError as error:
        reason = str(error)
    architecture = published.get("model_type") or next(iter(_texts(published.get("architectures"))), None)
    return Headers(source, name, config, reason, architecture and str(architecture), published, shapes, types)


def _of_gguf(source: Source) -> Headers:
    from statewise.checkpoints.convert.gguf import build_entries, gguf_config, model_tensors
    from statewise.checkpoints.convert.gguf_file import read_file

    file = read_file(source.weights)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    types = {name: tensor.type for name, tensor in file.tensors.items()}
    config, reason = None, None
    try:
        config = gguf_config(file)
        with names_alone():
            stored: Mapping[str, Any] = model_tensors(file)
            entries = build_entries(str(file.metadata["general.architecture"]), config)
            read_entries(entries, stored, expected_shapes(config), where=str(source.weights))
    except CheckpointError as error:
        config, reason = None, str(error)
    architecture = str(file.metadata.get("general.architecture"))
    prefix = f"{architecture}."
    said = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    return Headers(source, "gguf", config, reason, architecture, said, shapes, types)


def kinds_of(config: Mapping[str, Any]) -> list[str]:
    """What a config of somebody else's says of each layer; empty if it does not say how many there are.

    >>> kinds_of({"hybrid_override_pattern": "M-*"})
    ['mamba', 'mlp', 'attention']
    >>> kinds_of({"num_hidden_layers": 2})
    ['', '']
    """
    for field in KIND_FIELDS:
        said = config.get(field)
        if isinstance(said, str):
            return [LETTERS.get(letter, letter) for letter in said if letter != "|"]
        if isinstance(said, list) and said and len(_texts(said)) == len(said):
            return _texts(said)
    counted = [config.get(field) for field in COUNT_FIELDS]
    n_layers = next((n for n in counted if isinstance(n, int) and 0 < n <= 10_000), 0)
    return [""] * n_layers


def names_of_parts() -> dict[str, list[str]]:
    """What the parts of layers are called in transformers' hybrids, and the configs of ours that they are there.

    >>> names_of_parts()["linear_attn"], names_of_parts()["conv"]
    (['GatedDeltaNetConfig'], ['GatedConvolutionConfig'])
    """
    from statewise.checkpoints.convert.hybrids import every_family

    found: dict[str, set[str]] = {}
    for family in every_family():
        for kind in family.blocks.values():
            for part in (kind.mixer, kind.mlp):
                for one in () if part is None else part.named():
                    found.setdefault(one.name.partition(".")[0], set()).add(one.config.__name__)
    return {name: sorted(configs) for name, configs in found.items()}


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each is there, the most frequent first."""
    return dict(Counter(names).most_common())


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
