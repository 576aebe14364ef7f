"""Labelled sequences in memory: many rows of different lengths in one array, scaled only when a batch is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from statewise.errors import DataError
from statewise.models.file_input import FilesConfig

BLOCK_STEPS = 1 << 22  # how many steps are taken to float64 at once


class Rows(NamedTuple):
    """values: (steps, d_input) of any dtype, the rows one after the other, as they were stored.
    lengths: (n,) int64, each at least 1; their sum is the number of steps.
    targets: (n,) int64 classes, or (n, d_output) float32 for regression.
    """

    values: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray


class Scaling(NamedTuple):
    """What is done to raw values: ``kind`` "none", "series" (see :func:`standardise_rows`), or "dataset", which is
    x * scale + shift with (d_input,) float64 each; (0,) for the other kinds.
    """

    kind: str
    scale: np.ndarray = np.empty(0)
    shift: np.ndarray = np.empty(0)


class Found(NamedTuple):
    """What a loader found. ``test`` and ``validation`` are None where the source has no such rows of its own.

    classes: their names; empty for regression.  normalize: what suits the source.  notes: for the reader.
    sampling_rate: steps a second; None where there is none, or it is unknown.
    taken_for: what your own files were taken for, in words.  files: how rows come out of them, so that the model can
        read such files later; None for arrays, and for data sets by name.
    """

    name: str
    train: Rows
    test: Rows | None
    classes: tuple[str, ...]
    normalize: str
    notes: tuple[str, ...] = ()
    sampling_rate: float | None = None
    validation: Rows | None = None
    taken_for: str = ""
    files: FilesConfig | None = None


@dataclass(frozen=True)
class LabelledSplit:
    """The rows of one split. Row i is ``values[begins[i]:begins[i] + lengths[i]] * scale + shift``, its steps in
    ``order`` if that is given; ``scale`` and ``shift`` are (1, d_input) for all rows, or (n, d_input).
    """

    name: str
    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    order: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def n_steps(self) -> int:
        """The steps of all rows together."""
        return int(self.lengths.sum())

    @property
    def raw(self) -> RawSplit:
        """The same rows as they were stored, for a model that scales and orders them itself."""
        return RawSplit(self)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs and targets of these rows."""
        return self.inputs(rows), self.targets[rows]

    def sequence(self, i: int) -> np.ndarray:
        """Row ``i``: (length, d_input) float32."""
        return self.inputs(np.array([i]))[0, : self.lengths[i]]

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """These rows, right-padded with zeros to the longest of them: (len(rows), length, d_input) float32."""
        lengths = self.lengths[rows]
        length = int(lengths.max())
        scale, shift = (part if len(part) == 1 else part[rows][:, None] for part in (self.scale, self.shift))
        if (lengths == length).all():
            steps = np.arange(length) if self.order is None else self.order
            scaled = self.values[self.begins[rows][:, None] + steps] * scale + shift
            return scaled.astype(np.float32, copy=False)
        padded = np.zeros((len(rows), length, self.values.shape[1]), np.float32)
        for i, (row, begin, n) in enumerate(zip(padded, self.begins[rows], lengths)):
            row[:n] = self.values[begin : begin + n] * scale[i % len(scale)] + shift[i % len(shift)]
        return padded


@dataclass(frozen=True)
class RawSplit:
    """The rows of a split, neither scaled nor reordered: what whoever asks a trained model has.

    Values keep their dtype, but for one that PyTorch does not have or does not compute with: such become the float that
    numpy makes of them beside float32, with the same values.
    """

    split: LabelledSplit

    @property
    def name(self) -> str:
        return self.split.name

    @property
    def lengths(self) -> np.ndarray:
        return self.split.lengths

    def __len__(self) -> int:
        return len(self.split)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs, right-padded with zeros: (len(rows), length, d_input); and targets."""
        split, lengths = self.split, self.split.lengths[rows]
        length, values = int(lengths.max()), split.values
        if (lengths == length).all():
            padded = values[split.begins[rows][:, None] + np.arange(length)]
        else:
            padded = np.zeros((len(rows), length, values.shape[1]), values.dtype)
            for row, begin, n in zip(padded, split.begins[rows], lengths):
                row[:n] = values[begin : begin + n]
        return padded.astype(readable(values.dtype), copy=False), split.targets[rows]

    def sequence(self, i: int) -> np.ndarray:
        """Row ``i``: (length, d_input)."""
        inputs, _ = self.read(np.array([i]))
        return inputs[0]


def readable(dtype: np.dtype) -> np.dtype:
    """The dtype in which PyTorch reads such numbers: the same, or a floating one that holds them."""
    if dtype.newbyteorder("=") in map(np.dtype, ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")):
        return dtype.newbyteorder("=")
    return np.dtype(np.float32 if np.result_type(dtype, np.float32) == np.float32 else np.float64)


def begins_of(lengths: np.ndarray) -> np.ndarray:
    """Where each row begins when they lie one after the other."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[:-1])])


def join(sequences: list[np.ndarray], targets: np.ndarray) -> Rows:
    """Rows from arrays (length, d_input).

    Errors:  DataError if there are none, or one is empty.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    if not len(lengths) or not lengths.min():
        raise DataError(
            f"of {len(lengths)} sequences {int((lengths == 0).sum())} are empty; each needs at least one step"
        )
    return Rows(np.concatenate(sequences), lengths, targets)


def row_moments(values: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each row and the sum of squared deviations from it, each (n, d_input) float64."""
    mean = np.empty((len(begins), values.shape[1]))
    squares = np.empty_like(mean)
    if (lengths == lengths[0]).all():
        block = max(1, BLOCK_STEPS // int(lengths[0]) // values.shape[1])
        for low in range(0, len(begins), block):
            rows = slice(low, low + block)
            x = values[begins[rows, None] + np.arange(lengths[0])].astype(np.float64)
            mean[rows] = x.mean(1)
            squares[rows] = ((x - mean[rows, None]) ** 2).sum(1)
        return mean, squares
    for i, (begin, n) in enumerate(zip(begins, lengths)):
        x = values[begin : begin + n].astype(np.float64)
        mean[i] = x.mean(0)
        squares[i] = ((x - mean[i]) ** 2).sum(0)
    return mean, squares


def standardise_rows(values: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scale and shift (n, d_input) float32 that give each channel of each row mean 0 and variance 1. A channel that
    does not change within a row becomes zero.
    """
    mean, squares = row_moments(values, begins, lengths)
    scale, shift = _scale_and_shift(mean, np.sqrt(squares / lengths[:, None]))
    return scale.astype(np.float32), shift.astype(np.float32)


def standardise_all(values: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scale and shift (1, d_input) float64 that give each channel mean 0 and variance 1 over all these rows."""
    mean, squares = row_moments(values, begins, lengths)
    weights = lengths[:, None] / lengths.sum()
    centre = (weights * mean).sum(0, keepdims=True)
    variance = squares.sum(0, keepdims=True) / lengths.sum() + (weights * (mean - centre) ** 2).sum(0, keepdims=True)
    return _scale_and_shift(centre, np.sqrt(variance))


def _scale_and_shift(mean: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = deviation <= 1e-12 * np.abs(mean)  # what rounding leaves of a constant; also 0 <= 0
    scale = np.where(flat, 0.0, 1.0 / np.where(flat, 1.0, deviation))
    return scale, -mean * scale
