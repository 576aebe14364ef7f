"""The opened data of a task of the Long Range Arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from statewise.data.long_range.config import PAIRS, LongRangeDataConfig
from statewise.data.long_range.split import TokenRowsSplit, rows_fingerprint
from statewise.data.sequences import LabelledSplit
from statewise.data.splits import SPLITS, unknown_split
from statewise.errors import DataError

Split = TokenRowsSplit | LabelledSplit


@dataclass(frozen=True)
class LongRangeData:
    """Opened data. ``split`` gives "train", "validation" and "test".

    classes: their names.  vocabulary: the tokens in order; empty where steps are numbers.
    content: equal only for the same rows.  notes: what the rows are.
    caveats: why results on these rows are not, or not quite, comparable with published ones.
    """

    config: LongRangeDataConfig
    splits: Mapping[str, Split]
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    content: str
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def is_pairs(self) -> bool:
        """Whether a row is a pair of documents."""
        return self.config.task in PAIRS

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens; None where steps are numbers."""
        return len(self.vocabulary) or None

    @property
    def d_input(self) -> int | None:
        """Numbers a step; None where steps are tokens."""
        return None if self.vocabulary else 1

    @property
    def d_output(self) -> int:
        """There are classes, and no numbers to predict."""
        return 0

    @property
    def each_step(self) -> bool:
        """Whether every step has a target of its own; here a row has one."""
        return False

    @property
    def max_length(self) -> int:
        """The length of the longest row, or document of a pair, of all splits."""
        return max(int(split.lengths.max()) for split in self.splits.values())

    def split(self, name: str) -> Split:
        """One of "train", "validation", "test".

        Errors:  DataError if it has no rows; ConfigError for another name.
        """
        if name not in SPLITS:
            raise unknown_split(name)
        if name not in self.splits:
            fields = (f"n_{name}", f"{name}_fraction")
            empty = [f"data.{field}=0" for field in fields if self.config.resolved(field) == 0]
            reason = f"{' and '.join(empty)}; set it above 0" if empty else "there are no rows for it; give more"
            raise DataError(f"{self.config.task}: there is no {name} split: {reason}")
        return self.splits[name]

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows in the same splits: what a resumed run is held against."""
        return rows_fingerprint([self.content, self.classes, self.vocabulary], self.splits)

    def describe(self) -> str:
        """The task and how much of it there is: a few lines to print."""
        steps = f"tokens of {self.vocab_size}" if self.vocabulary else "numbers"
        what = "pairs of documents" if self.is_pairs else "sequences"
        lines = [
            f"data       {self.config.task}: {len(self.classes)} classes; steps are {steps}",
            *(f"note       {note}" for note in (*self.notes, *self.caveats)),
        ]
        for name in SPLITS:
            if name in self.splits:
                split = self.splits[name]
                low, high = int(split.lengths.min()), int(split.lengths.max())
                length = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                share = np.bincount(split.targets).max() / len(split)
                lines.append(
                    f"{name:<10} {len(split):,} {what} of {length} steps; the most frequent class is {share:.1%}"
                )
        return "\n".join(lines)
