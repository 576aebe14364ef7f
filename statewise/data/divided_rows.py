"""Which labelled rows are for training, which for validation, which for the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from statewise.data.sequences import LabelledSplit, begins_of
from statewise.data.splits import ALL, SPLITS
from statewise.errors import DataError

if TYPE_CHECKING:
    from statewise.data.long_range.split import TokenRowsSplit

SplitType = TypeVar("SplitType", LabelledSplit, "TokenRowsSplit")


def hold_out(targets: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Which rows are held out, (n,) bool: of each class the nearest whole number to ``fraction`` of its rows, at least
    one where it has two; real targets count as one class. The rows are drawn by numpy's generator of ``seed``.

    >>> int(hold_out(np.array([0, 0, 0, 0, 1, 1]), 0.5, seed=0).sum())
    3
    """
    generator = np.random.default_rng(seed)
    held = np.zeros(len(targets), bool)
    classes = targets if targets.ndim == 1 else np.zeros(len(targets), np.int64)
    for label in np.unique(classes):
        rows = generator.permutation(np.flatnonzero(classes == label))
        n_held = min(max(round(fraction * len(rows)), 1), len(rows) - 1) if fraction else 0
        held[rows[:n_held]] = True
    return held


def held_out(
    labels: np.ndarray,
    parts: np.ndarray,
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
    where: str,
) -> np.ndarray:
    """parts (n,), 0 for training, 1 for validation, 2 for the test, with rows of part 0 held out where there are none
    of 1 or 2 yet: the test first, then validation, of each class alike, by numpy's generators of ``seed`` and
    ``seed`` + 1.

    Errors:  DataError for a fraction of which nothing is held out, since no class has two rows; it says ``where``.
    """
    divided = parts.copy()
    for name, part, fraction, own in (
        ("test", 2, test_fraction, seed),
        ("validation", 1, validation_fraction, seed + 1),
    ):
        if (parts == part).any():
            continue
        rows = np.flatnonzero(divided == 0)
        held = hold_out(labels[rows], fraction, own)
        require_held(held, fraction, name, labels[rows], where)
        divided[rows[held]] = part
    return divided


def require_held(held: np.ndarray, fraction: float, name: str, targets: np.ndarray, where: str) -> None:
    """Errors:  DataError, which says ``where``, for a ``fraction`` of which :func:`hold_out` holds out nothing."""
    if not fraction or held.any():
        return
    found = f"{where} has only one row"
    if targets.ndim == 1:
        counts = f"{len(targets):,} rows, {len(np.unique(targets)):,} classes"
        found = f"no class in {where} has two rows left for training and {name} ({counts})"
    raise DataError(
        f"data.{name}_fraction={fraction:g} holds out nothing: {found}; give more of each, or set "
        f"data.{name}_fraction=0"
    )


def rows_by_split(parts: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """The rows of each split that has any; those of validation and test in one random order, that of numpy's generator
    of ``seed``, so that the first of them are a fair sample.
    """
    found = {}
    for part, name in enumerate(SPLITS):
        chosen = np.flatnonzero(parts == part)
        if len(chosen):
            found[name] = chosen if name == "train" else np.random.default_rng([seed, 2]).permutation(chosen)
    return found


def together(splits: Sequence[SplitType], seed: int) -> SplitType:
    """The rows of some splits of the same data as one, "all", in the random order of numpy's generator of ``seed``."""
    order = np.random.default_rng([seed, 2]).permutation(sum(map(len, splits)))
    arrays = list({id(split.values): split.values for split in splits}.values())
    offsets = dict(zip(map(id, arrays), begins_of(np.array([len(values) for values in arrays]))))
    rows = {name: [getattr(split, name) for split in splits] for name in ("lengths", "targets")}
    rows["begins"] = [split.begins + offsets[id(split.values)] for split in splits]
    for name in ("scale", "shift"):
        parts: list[Any] = [getattr(split, name, None) for split in splits]
        if parts[0] is not None and any(part is not parts[0] or len(part) > 1 for part in parts):  # one for each row
            rows[name] = [np.broadcast_to(part, (len(split), part.shape[1])) for part, split in zip(parts, splits)]
    values = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return replace(splits[0], name=ALL, values=values, **{name: np.concatenate(p)[order] for name, p in rows.items()})
