"""Which labelled sequences, how scaled, how divided."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated

from statewise.configuration.types import EACH_ONCE, Count, Fraction, Natural, OneOf
from statewise.data.base import DataConfig, absolute
from statewise.data.joined_rows import JoinConfig
from statewise.data.own.targets import TASKS
from statewise.errors import ConfigError

SOURCES = ("digits", "fashion-mnist", "mnist", "cifar10", "spoken-digits", "files", "arrays", "ucr:<name>")
IMAGES = ("digits", "fashion-mnist", "mnist", "cifar10")
OWN = ("files", "arrays")
SPOKEN = ("digit", "speaker")  # what is said of a recording of spoken-digits
NORMALIZATIONS = ("dataset", "series", "none")
CHANNELS = ("grey", "rgb", "mono", "all")
OF_FILES = (
    "image_size", "sampling_rate", "label_field", "sequence_field", "row_field", "time_field", "ignored_fields",
    "labels", "task",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LabelledDataConfig(DataConfig):
    """Which sequences, how scaled, how divided.

    source: "digits" (scikit-learn's, the default), "fashion-mnist", "mnist", "cifar10", "spoken-digits", or "ucr:" and
        the name of a problem, as "ucr:ACSF1". Images are read as sequences of pixels, row by row. "files": your own
        sequences at ``folder``: a folder whose subfolders are classes, of pictures or of sounds; a table (CSV,
        Parquet, JSON lines); an .npz or .npy (see :func:`statewise.data.own.find.find_files`). "arrays" is the same.
    folder: the folder of the files; None: where a package puts them. An error says which files are missing.
    permuted: images only: the pixels of every image in one random order, drawn by numpy's generator of ``seed``.
    channels: for cifar10 and pictures: "grey" (0.299 R + 0.587 G + 0.114 B, rounded) or "rgb", three numbers a step;
        None: grey for cifar10, and for pictures if none has colour. For sounds: "mono", the mean of their channels (the
        default), or "all".
    normalize: "dataset": each channel has mean 0 and variance 1 over the training rows. "series": each channel of each
        row has, over its own steps (a channel that does not change becomes zero). "none": as stored. None: what suits
        the source: "dataset" for images, tables and arrays, "series" for sounds, "none" for UCR series.
    max_length: longer sequences are cut at their end.
    join: long rows, made of rows of one class end to end, each split of its own rows; None: the rows as they are.
    validation_fraction: the share of the training rows that is held out for validation, the same for each class; not
        used if the files have their own validation rows.
    test_fraction: the share held out for the test before that, the same for each class; only if the source has no
        test rows of its own. "digits" holds out a fifth by default.
    seed: decides which rows are held out, and the permutation.

    For "files":

    image_size: height and width that pictures are brought to; None: the most frequent size.
    sampling_rate: samples a second that sounds are brought to; None: the most frequent rate.
    label_field: the column of a table with the labels; None: "label". For spoken-digits: "digit" (the default) or
        "speaker".
    sequence_field: the column whose cells are the sequences, lists of numbers; None: each row is a sequence, and the
        other columns are its steps in their order (or the one other column, if it holds lists).
    row_field: in a table with a row for each step, the column that says which sequence the step belongs to.
    time_field: in such a table, the column that orders the steps, numbers or ISO dates; None: the order of the rows.
    ignored_fields: columns to leave out.
    labels: the labels of an .npy: another .npy, or a text with one on each line.
    task: None: text and whole numbers are classes, floating numbers are predicted. "regression" predicts whole numbers
        too; "classification" takes floating numbers that are whole as classes.
    """

    source: str = "digits"
    folder: str | None = None
    permuted: bool = False
    channels: Annotated[str, OneOf(CHANNELS)] | None = None
    normalize: Annotated[str, OneOf(NORMALIZATIONS)] | None = None
    max_length: Count | None = None
    join: JoinConfig | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction | None = None
    seed: Natural = 0
    image_size: tuple[Count, Count] | None = None
    sampling_rate: Count | None = None
    label_field: str | None = None
    sequence_field: str | None = None
    row_field: str | None = None
    time_field: str | None = None
    ignored_fields: Annotated[tuple[str, ...], EACH_ONCE] = ()
    labels: str | None = None
    task: Annotated[str, OneOf(TASKS)] | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES[:-1] and not (self.source.startswith("ucr:") and len(self.source) > 4):
            raise ConfigError(f"LabelledDataConfig.source={self.source!r} is unknown; use one of {', '.join(SOURCES)}")
        if "/" in self.source or "\\" in self.source:
            raise ConfigError(f"LabelledDataConfig.source={self.source!r} has a slash; give folders as data.folder")
        if self.permuted and self.source not in IMAGES:
            raise ConfigError(f"LabelledDataConfig.permuted is for images, {', '.join(IMAGES)}; not for {self.source}")
        if self.channels is not None and self.source not in ("cifar10", *OWN):
            raise ConfigError(f"LabelledDataConfig.channels is for cifar10 and files, not for {self.source}")
        if self.source == "cifar10" and self.channels not in (None, "grey", "rgb"):
            raise ConfigError(f"LabelledDataConfig.channels={self.channels!r} is for sounds; use grey or rgb")
        if self.test_fraction is not None and self.source not in ("digits", *OWN):
            raise ConfigError(f"LabelledDataConfig.test_fraction: {self.source} has its own test rows; leave it out")
        if self.source == "digits" and self.folder is not None:
            raise ConfigError(
                "LabelledDataConfig.folder is not for the digits, which come with scikit-learn; leave it out"
            )
        if self.permuted and self.max_length is not None:
            raise ConfigError(
                "LabelledDataConfig.permuted and max_length together would drop pixels at random; use one"
            )
        if self.join is not None and (self.permuted or self.max_length is not None):
            raise ConfigError(
                "LabelledDataConfig.join says how long rows are and in which order; leave out max_length and permuted"
            )
        if self.source not in OWN:
            used = ("label_field",) if self.source == "spoken-digits" else ()
            self.require_only(used, f"is for your own files, not for {self.source}")
        if self.source == "spoken-digits" and self.label_field not in (None, *SPOKEN):
            raise ConfigError(f"data.label_field={self.label_field!r} is unknown; use {' or '.join(SPOKEN)}")

    def require_only(self, used: tuple[str, ...], why: str) -> None:
        """Errors:  ConfigError, with ``why``, for a field of files that is given and is not among ``used``."""
        default = {field.name: field.default for field in fields(self)}
        for name in OF_FILES:
            if name not in used and getattr(self, name) != default[name]:
                raise ConfigError(f"data.{name} {why}; leave it out")

    def with_absolute_paths(self) -> LabelledDataConfig:
        paths = {"folder": self.folder, "labels": self.labels}
        return replace(self, **{name: absolute(path) for name, path in paths.items() if path is not None})  # type: ignore[arg-type]
