"""A format as a table: which of its tensors is which of ours, and how the one is computed from the other."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import CheckpointError, StatewiseError, retold

Compute = Callable[..., Tensor | tuple[Tensor, ...]]
_names_alone: ContextVar[bool] = ContextVar("names_alone", default=False)


@dataclass(frozen=True)
class Entry:
    """Tensors of theirs that are tensors of ours; with one name on each side and no functions, the same tensor.

    to_ours:   (one argument for each of ``theirs``) -> one tensor for each of ``ours``; None: the tensors as they are
    to_theirs: the way back; None: the tensors as they are. What is only copied, reshaped, split or put together is
               bit-equal after both.
    optional:  of theirs: files may have it or not, and none of ours is read then (``ours`` is empty), such as a table
               that is recomputed, or a head that is tied
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Compute | None = None
    to_theirs: Compute | None = None
    optional: bool = False


@contextmanager
def names_alone() -> Iterator[None]:
    """Within it :func:`read_entries` looks at names and shapes, and reads no number: so a file need not be read. What
    it returns lacks the tensors that would be computed; shapes that depend on numbers are not looked at."""
    token = _names_alone.set(True)
    try:
        yield
    finally:
        _names_alone.reset(token)


def same(theirs: str, ours: str) -> Entry:
    """One tensor under two names."""
    return Entry((theirs,), (ours,))


def affine(theirs: str, ours: str, *, bias: bool = True) -> list[Entry]:
    """The weight and, where there is one, the bias of a map or a norm."""
    return [same(f"{theirs}.{part}", f"{ours}.{part}") for part in ("weight", "bias")[: 1 + bias]]


def reshaped(
    theirs: str, ours: str, *, theirs_shape: Sequence[int], ours_shape: Sequence[int], drops_ones: bool = False
) -> Entry:
    """The same numbers in the same order, with other axes.

    drops_ones: theirs may lack first axes of one entry

    Errors:  CheckpointError for another shape; see :func:`read_entries`.
    """

    def to(shape: Sequence[int], before: Sequence[int], name: str) -> Compute:
        def reshape(tensor: Tensor) -> Tensor:
            if not (drops_ones and name == theirs and tensor.shape == _without_first_ones(before)):
                require_shape(name, tensor, before)
            return tensor.reshape(tuple(shape))

        return reshape

    return Entry(
        (theirs,), (ours,), to(ours_shape, theirs_shape, theirs), to(theirs_shape, ours_shape, ours), optional=False
    )


def _without_first_ones(shape: Sequence[int]) -> tuple[int, ...]:
    n_ones = next((i for i, size in enumerate(shape) if size != 1), 0)
    return tuple(shape[n_ones:])


def repeated(first: str, second: str, ours: str) -> Entry:
    """One tensor of ours that they hold twice, as a head that is tied to the embedding.

    Errors:  CheckpointError if the two differ; see :func:`read_entries`.
    """

    def once(one: Tensor, other: Tensor) -> Tensor:
        if one.shape != other.shape or not torch.equal(one, other):
            raise CheckpointError(f"{second} differs from {first}, but the two are tied; remove the one that is wrong")
        return one

    return Entry((first, second), (ours,), once, lambda tensor: (tensor, tensor))


def ends(embedding: str, head: str, *, tied: bool, held: bool) -> list[Entry]:
    """The embedding and the head. held: the file has a head also where that is tied to the embedding."""
    if not tied:
        return [same(embedding, "embedding.weight"), same(head, "head.weight")]
    return [repeated(embedding, head, "embedding.weight") if held else same(embedding, "embedding.weight")]


def prefix_in(whole: str, embedding: str, names: frozenset[str] | None) -> str:
    """What the names of a file's tensors begin with, if it has an ``embedding``. Files of the inner model alone have
    less than the whole prefix, or none. names: None for a file that is written."""
    prefix = whole
    while names is not None and prefix and prefix + embedding not in names:
        prefix = prefix.partition(".")[2]
    found = names is None or prefix + embedding in names
    return prefix if found else whole


def require_shape(name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """CheckpointError naming the tensor and both shapes."""
    if tuple(tensor.shape) != tuple(expected):
        raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}")


def require_tensor(name: str, tensors: Mapping[str, Tensor], where: str) -> None:
    """CheckpointError if it is missing, with one of almost that name if there is one."""
    if name not in tensors:
        raise CheckpointError(f"{where}: the tensor {name} is missing{_near(name, sorted(tensors))}")


def read_entries(
    entries: Iterable[Entry],
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Sequence[int]],
    *,
    where: str = "the checkpoint",
) -> dict[str, Tensor]:
    """Their tensors as ours; each of theirs is used exactly once.

    tensors:  all of theirs, by name    expected: the shapes of ours, as the model that was built of the config has them
    where:    what is read, for the messages

    Errors:   CheckpointError that names a tensor that is missing (and one of almost that name, if there is one), left
              over, or of a wrong shape.
    """
    entries = list(entries)
    known = {name for entry in entries for name in entry.theirs}
    if len(known) != sum(len(entry.theirs) for entry in entries):
        raise CheckpointError(f"{where}: the format's table names a tensor twice")
    unknown = sorted(tensors.keys() - known)
    found: dict[str, Tensor] = {}
    for entry in entries:
        missing = [name for name in entry.theirs if name not in tensors]
        if missing and entry.optional:
            continue
        if missing:
            raise CheckpointError(f"{where}: the tensor {missing[0]} is missing{_near(missing[0], unknown)}")
        if not entry.ours:
            continue
        given = tuple(tensors[name] for name in entry.theirs)
        alone = _names_alone.get() and entry.to_ours is not None
        made = _shapes_of(entry, given, where) if alone else _compute(entry, entry.to_ours, given, where)
        for name, tensor in zip(entry.ours if made else (), made, strict=True):
            if name in expected and tuple(tensor.shape) != tuple(expected[name]):
                theirs = " and ".join(entry.theirs)
                shapes = f"gives {name} of shape {tuple(tensor.shape)}, expected {tuple(expected[name])}"
                raise CheckpointError(f"{where}: {theirs} {shapes}")
            if not alone:
                found[name] = tensor
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise CheckpointError(f"{where}: the tensor {unknown[0]} does not belong to this architecture{more}")
    if not _names_alone.get():
        _require_all(found, expected, where)
    return found


def write_entries(
    entries: Iterable[Entry], tensors: Mapping[str, Tensor], *, where: str = "the model"
) -> dict[str, Tensor]:
    """Our tensors as theirs; each of ours is used exactly once. What is ``optional`` is not written.

    Errors:  CheckpointError that names a tensor of ours that is missing or left over.
    """
    left = set(tensors)
    found: dict[str, Tensor] = {}
    for entry in entries:
        if entry.optional and not entry.ours:
            continue
        for name in entry.ours:
            if name not in left:
                raise CheckpointError(f"{where}: the tensor {name} is missing, or is there twice")
            left.remove(name)
        given = tuple(tensors[name] for name in entry.ours)
        found.update(zip(entry.theirs, _compute(entry, entry.to_theirs, given, where), strict=True))
    if left:
        raise CheckpointError(f"{where}: the tensor {min(left)} has no place in this format")
    return found


def _compute(entry: Entry, function: Compute | None, given: tuple[Tensor, ...], where: str) -> tuple[Tensor, ...]:
    if function is None:
        return given
    try:
        with retold(CheckpointError, CheckpointError, where=f"{where}: "):
            made = function(*given)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, StatewiseError) or function is not entry.to_ours or any(t.is_meta for t in given):
            raise
        raise CheckpointError(f"{where}: {_with_shapes(entry.theirs, given)}; expected shapes that fit") from error
    return made if isinstance(made, tuple) else (made,)


def _with_shapes(names: Sequence[str], tensors: Sequence[Tensor], most: int = 4) -> str:
    """Each tensor with its shape; of many only one of each shape, those of the rarest first."""
    named = [(name, tuple(tensor.shape)) for name, tensor in zip(names, tensors)]
    if len(named) > most:
        often = Counter(shape for _, shape in named)
        first = {shape: name for name, shape in reversed(named)}
        named = sorted(((name, shape) for shape, name in first.items()), key=lambda one: often[one[1]])[:most]
    return " and ".join(f"{name} has shape {shape}" for name, shape in named)


def _shapes_of(entry: Entry, given: Sequence[Tensor], where: str) -> tuple[Tensor, ...]:
    """What is computed, as tensors without numbers; empty if it depends on numbers.

    given: tensors, or descriptions of them
    """
    empty = tuple(torch.empty(tuple(tensor.shape), device="meta") for tensor in given)
    try:
        return _compute(entry, entry.to_ours, empty, where)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, StatewiseError):
            raise
        if isinstance(error, (NotImplementedError, TypeError)) or "meta" in str(error).lower():
            return ()
        raise CheckpointError(f"{where}: {_with_shapes(entry.theirs, empty)}; expected shapes that fit") from error


def _require_all(found: Mapping[str, Tensor], expected: Mapping[str, Sequence[int]], where: str) -> None:
    for problem, names in (
        ("is read from no", expected.keys() - found.keys()),
        ("of no", found.keys() - expected.keys()),
    ):
        if names:
            raise CheckpointError(f"{where}: the model's tensor {min(names)} {problem} tensor of the file")


def _near(name: str, others: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, others, 1, 0.8)
    return f"; there is {near[0]}, which may be it under another name" if near else ""
