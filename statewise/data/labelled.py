"""Labelled sequences for classification and regression: found, divided, scaled, and ready to read.

``open_labelled(LabelledDataConfig(source="digits"))`` is all that training and evaluation need to call.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from statewise.data.cifar import find_cifar10
from statewise.data.divided_rows import hold_out, require_held, together
from statewise.data.images import find_digits, find_idx
from statewise.data.joined_rows import join_rows
from statewise.data.labelled_config import LabelledDataConfig as LabelledDataConfig
from statewise.data.own.find import find_files
from statewise.data.own.known import NOTHING, Known
from statewise.data.progress import Progress
from statewise.data.sequences import (
    Found,
    LabelledSplit,
    Rows,
    Scaling,
    begins_of,
    standardise_all,
    standardise_rows,
)
from statewise.data.splits import ALL, SPLITS, unknown_split
from statewise.data.spoken_digits import find_spoken_digits
from statewise.data.ucr import find_ucr
from statewise.errors import DataError

NO_VALIDATION = "too few training rows of each class to hold any out"


@dataclass(frozen=True)
class LabelledData:
    """Opened data. ``split`` gives "train", "validation" and "test", and "all" of their rows.

    classes: the names of the classes; empty for regression.
    """

    config: LabelledDataConfig
    found: Found
    splits: dict[str, LabelledSplit]
    scaling: Scaling  # what the splits do to the values
    n_cut: int  # rows longer than config.max_length

    @property
    def classes(self) -> tuple[str, ...]:
        return self.found.classes

    @property
    def d_input(self) -> int:
        """Numbers a step."""
        return self.found.train.values.shape[1]

    @property
    def vocab_size(self) -> None:
        """Steps are numbers, not tokens."""

    @property
    def each_step(self) -> bool:
        """Whether every step has a target of its own; here a sequence has one."""
        return False

    @property
    def d_output(self) -> int:
        """Numbers to predict for a row; 0 where there are classes."""
        return 0 if self.classes else self.found.train.targets.shape[1]

    @property
    def max_length(self) -> int:
        """The length of the longest row of all splits."""
        return max(int(split.lengths.max()) for split in self.splits.values())

    def split(self, name: str) -> LabelledSplit:
        """One of "train", "validation", "test", or the rows of "all" of them, in one random order.

        Errors:  DataError if its fraction is 0; ConfigError for another name.
        """
        if name == ALL:
            return together(list(self.splits.values()), self.config.seed)
        if name not in SPLITS:
            raise unknown_split(name, *SPLITS, ALL)
        if name not in self.splits:
            is_zero = getattr(self.config, f"{name}_fraction") == 0
            why = f"data.{name}_fraction is 0; set it above 0" if is_zero else NO_VALIDATION
            if self.config.join is not None and not getattr(self.config.join, f"n_{name}"):
                why = f"data.join.n_{name} is 0; set it above 0"
            raise DataError(f"there is no {name} split: {why}")
        return self.splits[name]

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows in the same splits, scaled in the same way: a resumed run compares it. The order
        of the rows within a split is not part of it.
        """
        digest = hashlib.sha256(json.dumps([self.classes, sorted(self.splits)]).encode())
        for part in (self.found.train, self.found.test, self.found.validation):
            if part is not None:
                digest.update(np.ascontiguousarray(part.values).data)
        for name in sorted(self.splits):
            split = self.splits[name]
            rows = np.argsort(split.begins)
            if self.config.join is not None:
                digest.update(np.ascontiguousarray(split.values).data)
            for array in (split.begins, split.lengths, split.targets, split.scale, split.shift):
                digest.update(np.ascontiguousarray(array if len(array) == 1 else array[rows]).data)
            if split.order is not None:
                digest.update(np.ascontiguousarray(split.order).data)
        return digest.hexdigest()

    def describe(self) -> str:
        """What was found, how it was scaled and divided, and how much of it there is: a few lines to print."""
        what = (
            f"{len(self.classes)} classes"
            if self.classes
            else f"{self.d_output} number{'s' * (self.d_output > 1)} to predict"
        )
        channels = f"{self.d_input} number{'s' * (self.d_input > 1)} a step"
        scaled = {
            "dataset": "each channel to mean 0 and variance 1 over the training rows",
            "series": "each channel of each row to mean 0 and variance 1",
            "none": "not at all",
        }[self.scaling.kind]
        taken_for = self.found.taken_for
        first = f"{taken_for}; {channels}" if taken_for else f"{what}, {channels}; {'; '.join(self.found.notes)}"
        lines = [f"data       {self.found.name}: {first}"]
        if self.config.join is not None:
            lines.append(
                "joined     rows of one class end to end, cut to their length; none again before all came once"
            )
        if self.config.permuted:
            lines.append(f"permuted   all rows alike, by seed {self.config.seed}")
        if self.n_cut:
            lines.append(f"cut        {self.n_cut:,} rows at their end, to {self.config.max_length:,} steps")
        lines.append(f"scaled     {scaled}")
        for name in SPLITS:
            if name in self.splits:
                split = self.splits[name]
                low, high = int(split.lengths.min()), int(split.lengths.max())
                length = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                lines.append(f"{name:<10} {len(split):,} sequences of {length} steps")
            elif name == "validation" and self.config.validation_fraction:
                lines.append(f"validation none: {NO_VALIDATION}")
        return "\n".join(lines)


def open_labelled(
    config: LabelledDataConfig, *, progress: Progress | None = None, known: Known = NOTHING
) -> LabelledData:
    """Find, divide and scale the rows. Values stay as they were stored (bytes, 16 bits) until a batch is read.

    The rows of "validation" and "test" are in one random order, that of numpy's generator of ``seed``: files are
    often sorted by class, and so the first rows of a split, however few, are a fair sample of it.

    ``progress(done, total)`` is called while pictures and sounds are decoded, which is done once.
    ``known``: what a trained model says of its data, by which these are read.

    Errors:  DataError, one line: what was looked for, where, and how to get it; files that are not what they should be;
             a test of which nothing is held out.
    """
    found = _find(config, progress, known)
    parts: dict[str, tuple[Rows, np.ndarray]] = {}
    rest = np.arange(len(found.train.lengths))
    if found.test is not None:
        parts["test"] = (found.test, np.arange(len(found.test.lengths)))
        if config.test_fraction:
            raise DataError("data.test_fraction: the file has its own test rows; leave it out")
    elif config.test_fraction != 0:
        fraction = 0.2 if config.test_fraction is None else config.test_fraction
        held = hold_out(found.train.targets, fraction, config.seed)
        require_held(held, fraction, "test", found.train.targets, found.name)
        parts["test"], rest = (found.train, rest[held]), rest[~held]
    if found.validation is not None:
        parts["validation"] = (found.validation, np.arange(len(found.validation.lengths)))
    elif config.validation_fraction:
        held = hold_out(found.train.targets[rest], config.validation_fraction, config.seed + 1)
        if held.any():
            parts["validation"], rest = (found.train, rest[held]), rest[~held]
    parts["train"] = (found.train, rest)
    if config.join is not None:
        kept = {name: part for name, part in parts.items() if getattr(config.join, f"n_{name}")}
        long = {name: join_rows(*part, config.join, name, config.seed) for name, part in kept.items()}
        parts = {name: (rows, np.arange(len(rows.lengths))) for name, rows in long.items()}
    for name in parts.keys() - {"train"}:
        rows, chosen = parts[name]
        parts[name] = (rows, np.random.default_rng([config.seed, 2]).permutation(chosen))
    limit = config.max_length or max(int(rows.lengths.max()) for rows, _ in parts.values())
    begins = {name: begins_of(rows.lengths)[chosen] for name, (rows, chosen) in parts.items()}
    lengths = {name: rows.lengths[chosen].clip(max=limit) for name, (rows, chosen) in parts.items()}
    order = np.random.default_rng(config.seed).permutation(limit) if config.permuted else None
    normalize = config.normalize or found.normalize
    d_input = found.train.values.shape[1]
    scale, shift = np.ones((1, d_input), np.float32), np.zeros((1, d_input), np.float32)
    scaling = Scaling(normalize)
    if normalize == "dataset":
        wide = standardise_all(parts["train"][0].values, begins["train"], lengths["train"])
        scaling = Scaling(normalize, *(part[0] for part in wide))
        scale, shift = (part.astype(np.float32) for part in wide)
    splits = {}
    for name, (rows, chosen) in parts.items():
        if normalize == "series":
            scale, shift = standardise_rows(rows.values, begins[name], lengths[name])
        splits[name] = LabelledSplit(
            name, rows.values, begins[name], lengths[name], rows.targets[chosen], scale, shift, order
        )
    n_cut = sum(int((rows.lengths[chosen] > limit).sum()) for rows, chosen in parts.values())
    return LabelledData(config, found, splits, scaling, n_cut)


def _find(config: LabelledDataConfig, progress: Progress | None, known: Known) -> Found:
    folder = None if config.folder is None else Path(config.folder).expanduser()
    if folder is not None and not folder.exists():
        what = {"arrays": "the .npz file", "files": "a folder, a table or an .npz file"}.get(
            config.source, f"the folder that {config.source} lies in"
        )
        raise DataError(f"data.folder={config.folder!r} does not exist; give {what}")
    source = config.source
    if source == "digits":
        return find_digits()
    if source in ("fashion-mnist", "mnist"):
        return find_idx(source, folder)
    if source == "cifar10":
        return find_cifar10(folder, config.channels or "grey", progress)
    if source == "spoken-digits":
        return find_spoken_digits(folder, config.label_field or "digit")
    if source in ("files", "arrays"):
        return find_files(folder, config, progress, known)
    return find_ucr(source.removeprefix("ucr:"), folder)
