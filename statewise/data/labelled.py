"""Labelled sequences for classification and regression: found, divided, scaled, and there to be read.

``open_labelled(LabelledDataConfig(source="digits"))`` is all that training and evaluation need to call.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np

from statewise.configuration.types import Count, Fraction, Natural, OneOf
from statewise.data.arrays import find_arrays
from statewise.data.base import DataConfig, absolute
from statewise.data.cifar import find_cifar10
from statewise.data.images import find_digits, find_idx
from statewise.data.progress import Progress
from statewise.data.sequences import (
    Found,
    LabelledSplit,
    Rows,
    Scaling,
    begins_of,
    hold_out,
    standardise_all,
    standardise_rows,
)
from statewise.data.splits import SPLITS
from statewise.data.spoken_digits import find_spoken_digits
from statewise.data.ucr import find_ucr
from statewise.errors import ConfigError, DataError

SOURCES = ("digits", "fashion-mnist", "mnist", "cifar10", "spoken-digits", "arrays", "ucr:<name>")
IMAGES = ("digits", "fashion-mnist", "mnist", "cifar10")
NORMALIZATIONS = ("dataset", "series", "none")
CHANNELS = ("grey", "rgb")


@dataclass(frozen=True, kw_only=True)
class LabelledDataConfig(DataConfig):
    """Which sequences, how scaled, how divided.

    source: "digits" (scikit-learn's, the default), "fashion-mnist", "mnist", "cifar10", "spoken-digits", or "ucr:" and
        the name of a problem, as "ucr:ACSF1". Images are read as sequences of pixels, row by row. "arrays": your own
        sequences, the .npz file at ``folder`` (see :func:`statewise.data.arrays.find_arrays`).
    folder: where the files lie; None: where a package puts them. The loaders say which files they look for.
    permuted: images only: the pixels of every image in one random order, that of numpy's generator of ``seed``.
    channels: of cifar10: "grey" (the default; 0.299 R + 0.587 G + 0.114 B, rounded) or "rgb", three numbers a step.
    normalize: "dataset": each channel has mean 0 and variance 1 over the training rows. "series": each channel of each
        row has, over its own steps (a channel that does not change becomes zero). "none": as stored. None: what suits
        the source: "dataset" for images, and arrays, "series" for spoken digits, "none" for UCR series.
    max_length: longer sequences are cut at their end.
    validation_fraction: the share of the training rows that is held out for validation, of each class alike.
    test_fraction: the share held out for the test, of each class alike, before that; only where the source has no
        test rows of its own, as "digits", whose fifth is held out by default.
    seed: of what is held out, and of the permutation.
    """

    source: str = "digits"
    folder: str | None = None
    permuted: bool = False
    channels: Annotated[str, OneOf(CHANNELS)] | None = None
    normalize: Annotated[str, OneOf(NORMALIZATIONS)] | None = None
    max_length: Count | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction | None = None
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.source not in SOURCES[:-1] and not (self.source.startswith("ucr:") and len(self.source) > 4):
            raise ConfigError(f"LabelledDataConfig.source={self.source!r} is unknown; use one of {', '.join(SOURCES)}")
        if "/" in self.source or "\\" in self.source:
            raise ConfigError(f"LabelledDataConfig.source={self.source!r} has a slash; a folder goes into data.folder")
        if self.permuted and self.source not in IMAGES:
            raise ConfigError(f"LabelledDataConfig.permuted is for images, {', '.join(IMAGES)}; not for {self.source}")
        if self.channels is not None and self.source != "cifar10":
            raise ConfigError(f"LabelledDataConfig.channels is for cifar10, not for {self.source}; leave it out")
        if self.test_fraction is not None and self.source not in ("digits", "arrays"):
            raise ConfigError(f"LabelledDataConfig.test_fraction: {self.source} has test rows of its own; leave it out")
        if self.source == "digits" and self.folder is not None:
            raise ConfigError("LabelledDataConfig.folder: the digits come with scikit-learn; leave it out")
        if self.permuted and self.max_length is not None:
            raise ConfigError(
                "LabelledDataConfig.permuted and max_length together would drop pixels at random; use one"
            )

    def with_absolute_paths(self) -> LabelledDataConfig:
        return self if self.folder is None else replace(self, folder=absolute(self.folder))


@dataclass(frozen=True)
class LabelledData:
    """Opened data. ``split`` gives "train", "validation" and "test".

    classes: their names, empty for regression.
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
        """Of the longest row of all splits."""
        return max(int(split.lengths.max()) for split in self.splits.values())

    def split(self, name: str) -> LabelledSplit:
        """One of "train", "validation", "test".

        Errors:  DataError if its fraction is 0; ConfigError for another name.
        """
        if name not in SPLITS:
            raise ConfigError(f"there is no split {name!r}; use one of {list(SPLITS)}")
        if name not in self.splits:
            raise DataError(f"there is no {name} split: data.{name}_fraction is 0; set it above 0")
        return self.splits[name]

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows in the same splits, scaled alike: what a resumed run is held against. The order
        of the rows within a split is not part of it.
        """
        digest = hashlib.sha256(json.dumps([self.classes, sorted(self.splits)]).encode())
        for part in (self.found.train, self.found.test):
            if part is not None:
                digest.update(np.ascontiguousarray(part.values).data)
        for name in sorted(self.splits):
            split = self.splits[name]
            rows = np.argsort(split.begins)
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
        lines = [f"data       {self.found.name}: {what}, {channels}; {'; '.join(self.found.notes)}"]
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
        return "\n".join(lines)


def open_labelled(config: LabelledDataConfig, *, progress: Progress | None = None) -> LabelledData:
    """Find, divide and scale the rows. Values stay as they were stored (bytes, 16 bits) until a batch is read.

    The rows of "validation" and "test" stand in one random order, that of numpy's generator of ``seed``: files are
    often sorted by class, and so the first rows of a split, however few, are a fair sample of it.

    ``progress(done, total)`` is called while images are decoded, which is done once.

    Errors:  DataError, one line: what was looked for, where, and how to get it; files that are not what they should be.
    """
    found = _find(config, progress)
    parts: dict[str, tuple[Rows, np.ndarray]] = {}
    rest = np.arange(len(found.train.lengths))
    if found.test is not None:
        parts["test"] = (found.test, np.arange(len(found.test.lengths)))
        if config.test_fraction is not None:
            raise DataError("data.test_fraction: the file has test rows of its own; leave it out")
    elif config.test_fraction != 0:
        fraction = 0.2 if config.test_fraction is None else config.test_fraction
        held = hold_out(found.train.targets, fraction, config.seed)
        if held.any():
            parts["test"], rest = (found.train, rest[held]), rest[~held]
    if config.validation_fraction:
        held = hold_out(found.train.targets[rest], config.validation_fraction, config.seed + 1)
        if held.any():
            parts["validation"], rest = (found.train, rest[held]), rest[~held]
    parts["train"] = (found.train, rest)
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
        wide = standardise_all(found.train.values, begins["train"], lengths["train"])
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


def _find(config: LabelledDataConfig, progress: Progress | None) -> Found:
    folder = None if config.folder is None else Path(config.folder).expanduser()
    if folder is not None and not folder.exists():
        what = "the .npz file" if config.source == "arrays" else f"the folder that {config.source} lies in"
        raise DataError(f"data.folder={config.folder!r} does not exist; give {what}")
    source = config.source
    if source == "digits":
        return find_digits()
    if source in ("fashion-mnist", "mnist"):
        return find_idx(source, folder)
    if source == "cifar10":
        return find_cifar10(folder, config.channels or "grey", progress)
    if source == "spoken-digits":
        return find_spoken_digits(folder)
    return find_arrays(folder) if source == "arrays" else find_ucr(source.removeprefix("ucr:"), folder)
