"""An opened language and its splits.

A row is a function of (seed, split, row) and the fields of the language: which rows are read with it, how many there
are and what the other splits have changes nothing. Candidates for it are drawn one after the other, and the first that
belongs to its split is taken. What belongs where is decided by a hash of the input (half of all inputs to "train", a
quarter to each of the others), so that no two splits have an input in common, and none has to be looked at for another.
In a language whose rows are all to differ, the candidate must not be equal to an earlier row of the split either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from statewise.data.splits import SPLITS, unknown_split
from statewise.data.synthetic_languages.config import OLD_FIELDS, SyntheticLanguageConfig
from statewise.data.synthetic_languages.language import Language, Rows
from statewise.data.synthetic_languages.words import Words, mixed
from statewise.errors import ConfigError, DataError
from statewise.memory import require_free

IGNORED = -100  # the target of a step that the loss does not count
QUARTERS = {"train": (0, 1), "validation": (2, 2), "test": (3, 3)}  # of the inputs, by the first two bits of their hash
MAX_DRAWS = 2048  # candidates for a row
STEP_BYTES, ORDER_BYTES = 64, 32  # of a token while its row is drawn; of a row in the order of an epoch
ROW_BYTES = 96  # of a row that may not be equal to another: its number and hash, and an entry of a set
WORDS_AT_ONCE = 1 << 18  # how much is drawn at once, so that it stays in the processor's cache


class LanguageSplit:
    """Rows of a language, drawn when they are read."""

    def __init__(self, name: str, language: Language, n_rows: int) -> None:
        self.name, self.language, self._n_rows = name, language, n_rows
        self._length = language.config.row_length(name)
        require_free(STEP_BYTES * self._length, f"a row of {self._length:,} tokens")
        require_free(ORDER_BYTES * n_rows, f"data.n_{name}={n_rows}")

    def __len__(self) -> int:
        return self._n_rows

    @cached_property
    def shape(self) -> tuple[int, int]:
        """How many tokens a model reads of each row, and how many answers it owes."""
        first = self._candidates(np.zeros(1, np.int64), np.zeros(1, np.int64))
        return first.inputs.shape[1], first.answers.shape[1]

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """tokens (n, length) int64; targets (n, length) int64, -100 where the loss does not count; answers (n, length)
        bool: the positions at which an answer is due, which is then the target.
        """
        drawn = self.rows(rows)
        answers = np.zeros(drawn.inputs.shape, bool)
        np.put_along_axis(answers, drawn.positions, True, 1)
        return drawn.inputs, self.targets(drawn), answers

    def targets(self, rows: Rows) -> np.ndarray:
        """(n, length): what each step is to predict: the answer where one is due, elsewhere the next token or -100."""
        targets = np.full_like(rows.inputs, IGNORED)
        if not self.language.config.answer_only:
            targets[:, :-1] = rows.inputs[:, 1:]
        np.put_along_axis(targets, rows.positions, rows.answers, 1)
        return targets

    def rows(self, rows: np.ndarray) -> Rows:
        """These rows; numbers from 0 up to the length of the split.

        Errors:  ConfigError if the language has not enough rows that differ.
        """
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise DataError(f"row {rows.max()} of the {self.name} split, which has the rows 0 to {len(self) - 1}")
        if self.language.deduplicated:
            return self._candidates(rows, self._accepted[rows])
        return self._first_inside(rows)[0]

    def in_parts(self, n_rows: int | None = None, rows_at_once: int | None = None) -> Iterator[Rows]:
        """All rows in order, or the first ``n_rows``, at most so many at a time."""
        n_rows = len(self) if n_rows is None else n_rows
        step = max(1, WORDS_AT_ONCE // self._length) if rows_at_once is None else rows_at_once
        for low in range(0, n_rows, step):
            yield self.rows(np.arange(low, min(low + step, n_rows)))

    # -- which candidates are taken ------------------------------------------------------------------------------------

    def _candidates(self, rows: np.ndarray, attempts: np.ndarray) -> Rows:
        seed = self.language.config.seed
        return self.language.draw(Words(seed, SPLITS.index(self.name), rows, attempts), self._length)

    def _inside(self, hashes: np.ndarray) -> np.ndarray:
        low, high = QUARTERS[self.name]
        quarters = hashes >> np.uint64(62)
        return (quarters >= low) & (quarters <= high)

    def _first_inside(self, rows: np.ndarray) -> tuple[Rows, np.ndarray, np.ndarray]:
        """For each row its first candidate that belongs to the split, its number, and its hash."""
        attempts = np.zeros(len(rows), np.int64)
        drawn = self._candidates(rows, attempts)
        hashes = self._hashes(drawn)
        pending = np.flatnonzero(~self._inside(hashes))
        if len(pending):
            drawn = Rows(*(np.array(array) for array in drawn))  # some may be views that cannot be written to
        while len(pending):
            attempts[pending] += 1
            if attempts[pending[0]] == MAX_DRAWS:
                raise self._too_small(int(rows[pending[0]]))
            again = self._candidates(rows[pending], attempts[pending])
            found = self._hashes(again)
            for array, new in zip(drawn, again):
                array[pending] = new
            hashes[pending] = found
            pending = pending[~self._inside(found)]
        return drawn, attempts, hashes

    @cached_property
    def _accepted(self) -> np.ndarray:
        """(n_rows,) the number of each row's candidate, where no two rows may be equal."""
        require_free(ROW_BYTES * len(self), f"drawing {len(self):,} rows of data.n_{self.name}, no two of them equal,")
        accepted, hashes = np.empty(len(self), np.int16), np.empty(len(self), np.uint64)
        step = max(1, WORDS_AT_ONCE // self._length)
        for low in range(0, len(self), step):
            rows = np.arange(low, min(low + step, len(self)))
            _, accepted[rows], hashes[rows] = self._first_inside(rows)
        seen: set[int] = set()
        for row, found in enumerate(hashes.tolist()):
            if found in seen:
                accepted[row], found = self._next_unseen(row, int(accepted[row]) + 1, seen)
            seen.add(found)
        return accepted

    def _next_unseen(self, row: int, attempt: int, seen: set[int]) -> tuple[int, int]:
        step = 64
        for low in range(attempt, MAX_DRAWS, step):
            attempts = np.arange(low, min(low + step, MAX_DRAWS))
            hashes = self._hashes(self._candidates(np.full(len(attempts), row), attempts))
            for number, found, inside in zip(attempts.tolist(), hashes.tolist(), self._inside(hashes)):
                if inside and found not in seen:
                    return number, found
        raise self._too_small(row)

    def _hashes(self, rows: Rows) -> np.ndarray:
        """(n,) uint64: equal for equal inputs, and else as good as never (one pair in 2^63)."""
        content = self.language.content(rows).astype(np.uint64)
        weights = mixed(np.arange(1, content.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
        return mixed((content + np.uint64(1)) @ weights)

    def _too_small(self, row: int) -> ConfigError:
        config = self.language.config
        size = f"vocab_size {self.language.vocab_size} and length {self._length}"
        return ConfigError(
            f"{type(config).__name__}.n_{self.name}={len(self)}, but no row {row} that is new and for no other split "
            f"was found in {MAX_DRAWS} draws: {config.task!r} has too few at {size}; use fewer rows, a larger "
            "vocabulary or longer rows"
        )


@dataclass(frozen=True)
class SyntheticLanguage:
    """An opened language. ``split`` gives "train", "validation" and "test"."""

    config: SyntheticLanguageConfig

    @cached_property
    def language(self) -> Language:
        return self.config.language

    @property
    def vocab_size(self) -> int:
        return self.language.vocab_size

    @property
    def chance(self) -> float:
        """The accuracy of naming one of the tokens that may be an answer, whatever was read."""
        return 1 / self.language.n_candidates

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows: what a resumed run is held against."""
        # As the one class for all languages had them, so that runs from then are still found to have the same data.
        fields = {"task": self.config.task, **dict.fromkeys(OLD_FIELDS), **asdict(self.config)}
        if fields.get("counted") == "row":
            del fields["counted"]  # which came later, and leaves the rows as they were
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        for array in self.split("train").rows(np.arange(1)):  # in case the rows should ever be drawn in another way
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def split(self, name: str) -> LanguageSplit:
        """One of "train", "validation", "test".

        Errors:  DataError if it has no rows; ConfigError for another name.
        """
        if name not in SPLITS:
            raise unknown_split(name)
        if not self._n_rows(name):
            raise DataError(f"there is no {name} split: data.n_{name} is 0; set it above 0")
        return self._splits[name]

    @cached_property
    def _splits(self) -> dict[str, LanguageSplit]:
        return {name: LanguageSplit(name, self.language, self._n_rows(name)) for name in SPLITS}

    def _n_rows(self, split: str) -> int:
        return {"train": self.config.n_train, "validation": self.config.n_validation, "test": self.config.n_test}[split]

    def text(self, tokens: np.ndarray) -> str:
        """A row's tokens by their names, with spaces between."""
        symbols = self.language.symbols
        return " ".join(symbols[int(token)] for token in tokens)

    def describe(self) -> str:
        """The task and how many rows there are: a few lines to print."""
        config = self.config
        told_apart = ("n_train", "n_validation", "n_test", "seed")
        fields = {name: value for name, value in asdict(config).items() if name not in told_apart}
        fields["answer_only"] = fields.pop("answer_only")  # the last to be told
        shown = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
        counts = ", ".join(f"{name} {self._n_rows(name):,}" for name in SPLITS)
        return (
            f"data       the language {config.task}: {shown}\n"
            f"sequences  drawn from seed {config.seed}: {counts}; chance {self.chance:.1%}"
        )


def open_synthetic_language(config: SyntheticLanguageConfig) -> SyntheticLanguage:
    """The language; costs nothing until rows are read."""
    return SyntheticLanguage(config)
