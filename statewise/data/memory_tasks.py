"""Synthetic tasks of memory: delay, copying, adding, the reconstruction of a function from the state, and retrieval.

Nothing is stored: row i of a split is drawn from numpy's generator of (seed, split, i) whenever it is read, so that the
rows of the splits are drawn apart, and no row hangs on how many there are.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from statewise.configuration.types import AtLeastTwo, Count, Natural, OneOf, Share
from statewise.data.base import DataConfig
from statewise.data.splits import SPLITS, unknown_split
from statewise.errors import ConfigError, DataError
from statewise.memory import require_free

TASKS = ("delay", "copying", "adding", "reconstruction", "retrieval")
N_NOISE = 8  # tokens that are never asked for, in retrieval
IGNORED = -100  # the class of a step whose prediction does not count
FIELDS_OF: dict[str, dict[str, Any]] = {  # what each task has besides ``length``, with the defaults
    "delay": {"delay": None, "band": None},
    "copying": {"n_symbols": 8, "n_copied": 10},
    "adding": {},
    "reconstruction": {"window": None, "band": 0.05, "n_points": 32, "each_step": False},
    "retrieval": {"n_symbols": 8, "n_pairs": 4, "shortest": None},
}


@dataclass(frozen=True, kw_only=True)
class MemoryDataConfig(DataConfig):
    """One of five tasks, each on sequences of ``length`` steps. A field that the task does not have has to be None.

    delay: the input is a white signal u, and the target of every step is u ``delay`` steps ago (half the length by
        default), 0 before that. Regression of every step: d_input 1, d_output 1, pooling None. Predicting zero gives a
        mean squared error of 1 - delay/length, and any model without memory the same where the signal is not
        band-limited.
        Source: Voelker et al. 2019 (LMU); Gu et al. 2022, arXiv:2206.12037 (length 4000, delay 1000).
    copying: ``n_copied`` symbols of ``n_symbols`` kinds, then blanks, the go marker, and blanks while the symbols are
        to be recalled: the targets of the last ``n_copied`` steps are the symbols, and no other step counts. The
        marker is on the step before the first answer. Tokens: symbols 0 to n_symbols - 1, then blank, then go.
        Classification of every step: vocab_size n_symbols + 2, n_classes n_symbols, pooling None. Chance: 1/n_symbols.
        Source: Hochreiter & Schmidhuber 1997; Arjovsky et al. 2016, arXiv:1511.06464, whose length is T + 20.
    adding: the first channel holds uniform numbers in [0, 1), the second 1 at two steps, one in each half of the
        sequence, and 0 elsewhere; the target is the sum of the two marked numbers. Regression of the whole: d_input 2,
        d_output 1. Always answering 1 gives a mean squared error of 1/6.
        Source: Hochreiter & Schmidhuber 1997; Arjovsky et al. 2016.
    reconstruction: the input is a band-limited signal; the targets are its values at ``n_points`` steps spread evenly
        over the past ``window`` (by default the length), the present first: u at t - round(j (window - 1) / (n_points
        - 1)).
        Regression from the last step (d_input 1, d_output n_points, pooling "last"), or with ``each_step`` from every
        step (pooling None; 0 for times before the beginning).
        Source: Gu et al. 2020, arXiv:2008.07669; Gu et al. 2022, arXiv:2206.12037.
    retrieval: in the first quarter of a row lie ``n_pairs`` keys, each with one of ``n_symbols`` symbols behind it. All
        else is noise, in which the symbols come as well, but no key. The last step is one of the keys, and the class is
        its symbol.
        Classification of the whole from its last step: vocab_size n_pairs + n_symbols + 8 more of noise,
        n_classes n_symbols, pooling "last". Chance: 1/n_symbols.
        Source: as multi-query recall, Arora et al. 2023, arXiv:2312.04927, with one query far behind its pair.

    shortest: the rows of the training split grow from this length to ``length``, many short ones and few long ones (see
        :func:`growing` and ``train.short_first``); None: all are as long.
    band: the signal has no frequency above this fraction of the Nyquist frequency; None: white noise, each value
        normal and independent. Every signal has mean 0 and variance 1 in expectation.
    n_train, n_validation, n_test: how many rows.
    """

    task: Annotated[str, OneOf(TASKS)] = "delay"
    length: AtLeastTwo = 256
    delay: Natural | None = None
    n_symbols: AtLeastTwo | None = None
    n_copied: Count | None = None
    window: Count | None = None
    band: Share | None = None
    n_points: Count | None = None
    each_step: bool | None = None
    n_pairs: Count | None = None
    shortest: AtLeastTwo | None = None
    n_train: Count = 4096
    n_validation: Natural = 512
    n_test: Natural = 512
    seed: Natural = 0

    def __post_init__(self) -> None:
        for name in sorted({name for fields in FIELDS_OF.values() for name in fields}):
            if getattr(self, name) is not None and name not in FIELDS_OF[self.task]:
                raise ConfigError(f"MemoryDataConfig.{name} is not for the task {self.task!r}; leave it out")
        for name, high in (
            ("delay", self.length - 1),
            ("window", self.length),
            ("n_copied", (self.length - 1) // 2),
            ("n_points", self.resolved("window")),
            ("n_pairs", (self.shortest or self.length) // 8),
            ("shortest", self.length),
        ):
            value = self.resolved(name)
            if value is not None and value > high:
                raise ConfigError(
                    f"MemoryDataConfig.{name}={value} is out of range for length {self.length}; use at most {high}"
                )

    def resolved(self, name: str) -> Any:
        """A field of the task, or its default; None where the task has no such field."""
        value = getattr(self, name)
        if value is not None or name not in FIELDS_OF[self.task]:
            return value
        lengths = {"delay": self.length // 2, "window": self.length}
        return lengths.get(name, FIELDS_OF[self.task][name])

    def with_absolute_paths(self) -> MemoryDataConfig:
        return self


ROW_BYTES, STEP_BYTES = 32, 64  # of a row: its length and its place in an order; of a step: numbers and their sums


class MemorySplit:
    """Rows of a task, drawn when they are read."""

    def __init__(self, name: str, config: MemoryDataConfig, n_rows: int) -> None:
        self.name, self.config = name, config
        require_free(ROW_BYTES * n_rows, f"data.n_{name}={n_rows}")
        require_free(STEP_BYTES * config.length, f"a row of data.length={config.length}")
        self.lengths = np.full(n_rows, config.length, np.int64)
        if name == "train" and config.shortest is not None:
            self.lengths = growing(n_rows, config.shortest, config.length)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs and targets of these rows, as ``LabelledBatch`` has them."""
        pairs = [_draw(self.config, self._generator(int(row)), int(self.lengths[row])) for row in rows]
        inputs, targets = zip(*pairs)
        longest = max(map(len, inputs))
        padded = [np.pad(x, [(0, longest - len(x)), *[(0, 0)] * (x.ndim - 1)]) for x in inputs]
        return np.stack(padded), np.stack(targets)

    def _generator(self, row: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, SPLITS.index(self.name), row])


@dataclass(frozen=True)
class MemoryData:
    """An opened task. ``split`` gives "train", "validation" and "test"."""

    config: MemoryDataConfig

    @property
    def classes(self) -> tuple[str, ...]:
        """The symbols, for copying and retrieval; else empty."""
        return tuple(map(str, range(self.config.resolved("n_symbols") or 0)))

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens, for copying and retrieval; None where numbers are read."""
        if self.config.task == "retrieval":
            return len(self.classes) + int(self.config.resolved("n_pairs")) + N_NOISE
        return len(self.classes) + 2 if self.classes else None

    @property
    def d_input(self) -> int | None:
        return None if self.classes else 2 if self.config.task == "adding" else 1

    @property
    def d_output(self) -> int:
        """Numbers to predict; 0 where there are classes."""
        return 0 if self.classes else self.config.resolved("n_points") or 1

    @property
    def each_step(self) -> bool:
        """Whether every step has a target of its own (pooling None), or the sequence has one."""
        return self.config.task in ("delay", "copying") or bool(self.config.resolved("each_step"))

    @property
    def max_length(self) -> int:
        return self.config.length

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows: what a resumed run is held against."""
        fields = {name: self.config.resolved(name) for name in asdict(self.config)}
        for name in ("n_pairs", "shortest"):  # which rows drawn before there was such a field do not have
            if fields[name] is None:
                del fields[name]
        first = self.split("train").read(np.arange(1))  # in case numpy should ever draw other numbers
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        for array in first:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def split(self, name: str) -> MemorySplit:
        """One of "train", "validation", "test".

        Errors:  DataError if it has no rows; ConfigError for another name.
        """
        if name not in SPLITS:
            raise unknown_split(name)
        n_rows = getattr(self.config, f"n_{name}")
        if not n_rows:
            raise DataError(f"there is no {name} split: data.n_{name} is 0; set it above 0")
        return MemorySplit(name, self.config, n_rows)

    def describe(self) -> str:
        """The task and how many rows there are: a few lines to print."""
        config = self.config
        fields = ", ".join(f"{name} {config.resolved(name)}" for name in FIELDS_OF[config.task])
        lines = [f"data       the task {config.task}: length {config.length:,}{', ' * bool(fields)}{fields}"]
        counts = ", ".join(f"{name} {getattr(config, f'n_{name}'):,}" for name in SPLITS)
        return "\n".join([*lines, f"sequences  drawn from seed {config.seed}: {counts}"])


def open_memory_task(config: MemoryDataConfig) -> MemoryData:
    """The task; costs nothing until rows are read."""
    return MemoryData(config)


def white_signal(generator: np.random.Generator, length: int, band: float | None) -> np.ndarray:
    """(length,) float64 of mean 0 and variance 1 in expectation, without frequencies above ``band`` (of Nyquist's).

    A band-limited signal is the first half of one with a period of twice the length (and has no constant part), so that
    its end does not run into its beginning.
    """
    if band is None:
        return generator.standard_normal(length)
    n_frequencies = max(1, int(band * length))  # of a period of 2 length, whose Nyquist frequency is the length-th
    spectrum = np.zeros(length + 1, np.complex128)
    real, imaginary = generator.standard_normal((2, n_frequencies))
    spectrum[1 : n_frequencies + 1] = real + 1j * imaginary
    signal = np.fft.irfft(spectrum, 2 * length)[:length]
    return signal * length / n_frequencies**0.5


def growing(n: int, shortest: int, longest: int) -> np.ndarray:
    """(n,) int64 lengths from the shortest to the longest: 1 / sqrt(length) falls in equal steps. Each octave has
    1/sqrt(2) times the rows of the one before it, and sqrt(2) times the steps; the mean is sqrt(shortest longest).

    >>> growing(8, 64, 1024)
    array([ 70,  87, 109, 142, 191, 273, 419, 726])
    """
    share = (np.arange(n) + 0.5) / n
    return np.rint((shortest**-0.5 - share * (shortest**-0.5 - longest**-0.5)) ** -2.0).astype(np.int64)


def _draw(config: MemoryDataConfig, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
    if config.task == "retrieval":
        return _draw_retrieval(generator, length, config.resolved("n_symbols"), config.resolved("n_pairs"))
    if config.task == "copying":
        return _draw_copying(generator, length, config.resolved("n_symbols"), config.resolved("n_copied"))
    if config.task == "adding":
        numbers, marks = generator.random(length), np.zeros(length)
        marked = [generator.integers(length // 2), generator.integers(length // 2, length)]
        marks[marked] = 1
        return np.stack([numbers, marks], 1).astype(np.float32), numbers[marked].sum(keepdims=True).astype(np.float32)
    signal = white_signal(generator, length, config.resolved("band")).astype(np.float32)
    if config.task == "delay":
        delay = config.resolved("delay")
        delayed = np.concatenate([np.zeros(delay, np.float32), signal[: length - delay]])
        return signal[:, None], delayed[:, None]
    points = np.rint(np.linspace(0, config.resolved("window") - 1, config.resolved("n_points"))).astype(np.int64)
    if not config.resolved("each_step"):
        return signal[:, None], signal[length - 1 - points]
    times = np.arange(length)[:, None] - points
    return signal[:, None], np.where(times < 0, np.float32(0), signal[times])


def _draw_copying(
    generator: np.random.Generator, length: int, n_symbols: int, n_copied: int
) -> tuple[np.ndarray, np.ndarray]:
    symbols = generator.integers(n_symbols, size=n_copied)
    tokens = np.full(length, n_symbols)
    tokens[:n_copied] = symbols
    tokens[length - n_copied - 1] = n_symbols + 1
    targets = np.full(length, IGNORED)
    targets[length - n_copied :] = symbols
    return tokens, targets


def _draw_retrieval(
    generator: np.random.Generator, length: int, n_symbols: int, n_pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens: the keys, the symbols, and what else is noise."""
    tokens = generator.integers(n_pairs, n_pairs + n_symbols + N_NOISE, size=length)
    symbols = generator.integers(n_symbols, size=n_pairs)
    keys = generator.permutation(n_pairs)
    free = length // 4 - n_pairs  # places, if a pair took one
    begins = np.sort(generator.choice(free, n_pairs, replace=False)) + np.arange(n_pairs)
    tokens[begins], tokens[begins + 1] = keys, n_pairs + symbols
    asked = generator.integers(n_pairs)
    tokens[-1] = keys[asked]
    return tokens, symbols[asked]
