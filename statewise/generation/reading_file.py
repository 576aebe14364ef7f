"""A Reading in a file: what a model knows after a long document, to continue on another day.

Where ``checkpoints.save_state`` keeps a model's state alone, this keeps all that generation needs, so that not even
the last token has to be read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from statewise.checkpoints.atomic import write_file
from statewise.checkpoints.states import weights_digest
from statewise.checkpoints.tensor_files import read_metadata, read_tensors
from statewise.checkpoints.trees import flatten_tree, unflatten_into
from statewise.errors import CheckpointError, StatewiseError, reading, retold
from statewise.generation.reading import Reading, nothing_read
from statewise.models.language_model import LanguageModel

FORMAT_VERSION = "1"
PREFIX = "reading"
NOTED = "note."


def save_reading(
    reading: Reading,
    path: str | os.PathLike[str],
    *,
    model: LanguageModel,
    notes: Mapping[str, str] | None = None,
    weights: str | None = None,
) -> None:
    """Writes what :func:`~statewise.generation.decode.read` gave to a safetensors file, whole or not at all.

    With it goes a digest of the model's weights, so that no other model takes it for its own. A file of that name
    is replaced. ``notes`` are texts that go with it, by names of their own. ``weights`` is the digest, if you have it
    already (:func:`~statewise.checkpoints.states.weights_digest`).

    Cost:    one pass over the state, and without ``weights`` over the model's weights.
    Errors:  CheckpointError if the disk does not take it; what was there before then remains.
    """
    # Leaves may share memory, which a safetensors file cannot say
    tensors = {name: leaf.detach().cpu().clone().contiguous() for name, leaf in flatten_tree(reading, PREFIX).items()}
    notes = {NOTED + name: text for name, text in (notes or {}).items()}
    digest = _digest(tensors, notes)
    weights = weights_digest(model) if weights is None else weights
    metadata = {"format_version": FORMAT_VERSION, "weights": weights, "sha256": digest, **notes}
    data = save(tensors, metadata=metadata)

    def write(aside: Path) -> None:
        aside.write_bytes(data)

    write_file(Path(path), len(data), write)


def load_reading(path: str | os.PathLike[str], *, model: LanguageModel) -> Reading:
    """The Reading that :func:`save_reading` wrote, on the device of the model; its notes are ignored.

    Errors:  CheckpointError, one line, for a file that is missing, damaged or of another format, and for one that was
             read with other weights.
    """
    return load_noted(path, model=model)[0]


def load_noted(
    path: str | os.PathLike[str], *, model: LanguageModel, weights: str | None = None
) -> tuple[Reading, dict[str, str]]:
    """As :func:`load_reading`, and the notes; ``weights`` as in :func:`save_reading`."""
    path = Path(path)
    with reading(f"the state {path}", CheckpointError):
        metadata, tensors = read_metadata(path), read_tensors(path)
    if metadata.get("format_version") != FORMAT_VERSION or "weights" not in metadata:
        raise CheckpointError(
            f"{path} is not a state of format {FORMAT_VERSION}; expected a file that --state-out wrote"
        )
    notes = {name: text for name, text in metadata.items() if name.startswith(NOTED)}
    if metadata.get("sha256") != _digest(tensors, notes):
        raise CheckpointError(f"the state {path} is damaged: its checksum does not match")
    if metadata["weights"] != (weights_digest(model) if weights is None else weights):
        raise CheckpointError(
            f"the state {path} was made with different weights; use the checkpoint that made it, or read the text again"
        )
    logits = tensors.get(f"{PREFIX}.logits")
    if logits is None or logits.ndim != 2:
        raise CheckpointError(f"the state {path} is damaged: it has no logits (batch, vocabulary)")
    with retold(CheckpointError, CheckpointError, where=f"the state {path} does not fit this model: "):
        found = unflatten_into(nothing_read(model, len(logits), None), tensors, PREFIX, same_shapes=False)
    assert isinstance(found, Reading)
    return found, {name.removeprefix(NOTED): text for name, text in notes.items()}


def has_note(path: str | os.PathLike[str], name: str) -> bool:
    """Whether :func:`save_reading` wrote the file, with this note, whatever the weights were."""
    try:
        return NOTED + name in read_metadata(Path(path))
    except (OSError, ValueError, StatewiseError):
        return False


def _digest(tensors: dict[str, Tensor], notes: Mapping[str, str]) -> str:
    data = save(tensors) + (json.dumps(notes, sort_keys=True).encode() if notes else b"")
    return hashlib.sha256(data).hexdigest()
