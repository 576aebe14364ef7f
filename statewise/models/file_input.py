"""What a model needs to read the kind of files it was trained on: part of its config, and so of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import EACH_ONCE, Count, OneOf
from statewise.errors import ConfigError

KINDS = ("pictures", "sounds", "wide table", "long table", "lists")
TABLES = ("wide table", "long table", "lists")
CHANNELS = {"pictures": ("grey", "rgb"), "sounds": ("mono", "all")}
SizeInPixels = tuple[Count, Count]


@dataclass(frozen=True, kw_only=True)
class FilesConfig(Config):
    """How numbers come out of files.

    kind:          "pictures", "sounds", "wide table" (a row of it is a sequence, a column a step), "long table" (a row
                   is a step) or "lists" (a cell is a sequence)
    channels:      of pictures "grey" or "rgb"; of sounds "mono", the mean of their channels, or "all" of them
    image_size:    height and width that pictures are brought to
    sampling_rate: samples a second that sounds are brought to
    columns:       of tables: those that hold the numbers, in their order
    row_field:     of long tables: the column that says to which sequence a row belongs
    time_field:    of long tables: the column by which the steps of a sequence are sorted; None: as they stand
    """

    kind: Annotated[str, OneOf(KINDS)]
    channels: Annotated[str, OneOf((*CHANNELS["pictures"], *CHANNELS["sounds"]))] | None = None
    image_size: SizeInPixels | None = None
    sampling_rate: Count | None = None
    columns: Annotated[tuple[str, ...], EACH_ONCE] = ()
    row_field: str | None = None
    time_field: str | None = None

    @property
    def every_column(self) -> tuple[str, ...]:
        """For tables: every column that is read."""
        return tuple(name for name in (*self.columns, self.row_field, self.time_field) if name is not None)

    def __post_init__(self) -> None:
        needed = {
            "channels": self.kind in CHANNELS,
            "image_size": self.kind == "pictures",
            "sampling_rate": self.kind == "sounds",
            "columns": self.kind in TABLES,
            "row_field": self.kind == "long table",
        }
        for name, is_needed in needed.items():
            if is_needed != bool(getattr(self, name)):
                what = "needs" if is_needed else "has no use for"
                raise ConfigError(f"FilesConfig of kind {self.kind!r} {what} {name}, but has {getattr(self, name)!r}")
        if self.time_field is not None and self.kind != "long table":
            raise ConfigError(f"FilesConfig.time_field is for a long table, not for {self.kind}; leave it out")
        if self.channels is not None and self.channels not in CHANNELS[self.kind]:
            raise ConfigError(
                f"FilesConfig of {self.kind} has channels={self.channels!r}; use one of {list(CHANNELS[self.kind])}"
            )
        if self.kind == "lists" and len(self.columns) != 1:
            raise ConfigError(f"FilesConfig of lists has {len(self.columns)} columns; give the one that holds them")
