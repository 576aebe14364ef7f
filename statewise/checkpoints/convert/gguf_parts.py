"""A GGUF model in several files, as llama.cpp's gguf-split cuts it: NAME-00001-of-00003.gguf and so on. The first says
what the model is; each says which part it is, of how many, and how many tensors all have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from statewise.checkpoints.convert.gguf_values import Value
from statewise.checkpoints.tensor_files import shown
from statewise.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statewise.checkpoints.convert.gguf_file import GGUF, StoredTensor

NUMBER, COUNT, N_TENSORS = "split.no", "split.count", "split.tensors.count"
ARCHITECTURE = "general.architecture"
NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class Part(NamedTuple):
    """What a file's name says: the first is number 1.

    >>> part_of("big-00002-of-00003.gguf"), part_of("big.gguf")
    (Part(stem='big', number=2, n_parts=3), None)
    """

    stem: str
    number: int
    n_parts: int

    def name(self, number: int) -> str:
        """The name of the file with this part of the same model."""
        return f"{self.stem}-{number:05d}-of-{self.n_parts:05d}.gguf"


def part_of(name: str) -> Part | None:
    """None for a name that is not one of a part."""
    match = NAME.fullmatch(name)
    return match and Part(match["stem"], int(match["number"]), int(match["count"]))


def one_of_each(names: Collection[str]) -> list[str]:
    """The names, of the parts of one model only the first that is there."""
    found: dict[object, str] = {}
    for name in sorted(names):
        part = part_of(name)
        found.setdefault(name if part is None else (part.stem, part.n_parts), name)
    return list(found.values())


def beside(name: str, names: Collection[str]) -> list[str]:
    """Those of the names that are the other parts of a model; none if the name is not one of a part."""
    own = part_of(name)
    return [] if own is None else [each for each in names if _alike(part_of(each), own) and each != name]


def parts_at(path: Path, metadata: Mapping[str, Value]) -> list[Path]:
    """The files of the model that a file is a part of, the first first; the file alone if it says nothing of parts.

    Errors:  CheckpointError that names the first file that is missing, and for a file whose name is another's.
    """
    from statewise.checkpoints.convert.source import require_inside

    count, number = metadata.get(COUNT, 1), metadata.get(NUMBER, 0)
    if count in (0, 1):
        return [path]
    own = part_of(path.name)
    if own is None or (own.n_parts, own.number - 1) != (count, number):
        raise CheckpointError(
            f"{path} is a part of a model, {NUMBER}={shown(repr(number))} with {COUNT}={shown(repr(count))}, which its "
            "name does not say; give all parts the names that they had, as in NAME-00001-of-00002.gguf"
        )
    paths = [path.with_name(own.name(i)) for i in range(1, own.n_parts + 1)]
    for other in paths:
        if other != path:
            require_inside(path.parent, other)
        if not other.is_file():
            raise CheckpointError(
                f"{other} is missing: the model is in {own.n_parts} files, {own.name(1)} to {own.name(own.n_parts)}; "
                "put all of them in one folder"
            )
    return paths


def joined(parts: Sequence[GGUF]) -> GGUF:
    """The model of all parts, in order: what the first says, and the tensors of all.

    Errors:  CheckpointError for a part that is of another model.
    """
    first = parts[0]
    tensors: dict[str, StoredTensor] = {}
    for i, part in enumerate(parts):
        for key, expected in ((NUMBER, i), (COUNT, len(parts)), (N_TENSORS, first.metadata.get(N_TENSORS))):
            found = part.metadata.get(key)
            if found != expected or type(found) is not int:
                raise _stranger(part, first, f"{key}={shown(repr(found))}, expected {shown(repr(expected))}")
        own, theirs = part.metadata.get(ARCHITECTURE), first.metadata.get(ARCHITECTURE)
        if own not in (None, theirs):
            raise _stranger(part, first, f"its architecture is {shown(str(own))} and not {shown(str(theirs))}")
        if again := tensors.keys() & part.tensors.keys():
            raise _stranger(part, first, f"the tensor {shown(min(again))} is in another part too")
        tensors |= part.tensors
    if len(tensors) != first.metadata[N_TENSORS]:
        raise CheckpointError(
            f"{first.path} and the {len(parts) - 1} parts after it have {len(tensors)} tensors, but "
            f"{N_TENSORS}={first.metadata[N_TENSORS]}: one of them is of another model"
        )
    return replace(first, tensors=tensors)


def _alike(part: Part | None, own: Part) -> bool:
    return part is not None and (part.stem, part.n_parts) == (own.stem, own.n_parts)


def _stranger(part: GGUF, first: GGUF, why: str) -> CheckpointError:
    return CheckpointError(f"{part.path} is not a part of the model in {first.path}: {why}; give the part that is")
