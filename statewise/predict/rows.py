"""What was given, as rows: arrays, tensors, lists of rows of unlike lengths; and rows as batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.data.sequences import readable
from statewise.errors import InputError
from statewise.models.encoder import SequenceModelConfig
from statewise.models.file_input import FilesConfig


def files_of(config: SequenceModelConfig) -> FilesConfig | None:
    """How rows come out of files, if the model was trained on such."""
    return None if config.input is None else config.input.files


def as_rows(x: Any, lengths: Any, config: SequenceModelConfig, *, pieces: bool = False) -> list[np.ndarray]:
    """Rows (length, d_input), or (length,) of tokens, each of its own length.

    x:       (n, length, d_input); (n, length) for tokens and for d_input=1; or a list of n rows, of unlike lengths
    lengths: (n,) where x is padded
    pieces:  of rows, which may be shorter than a frame

    Errors:  InputError for what is none of these, in one line.
    """
    if isinstance(x, (str, bytes)) or (isinstance(x, Sequence) and any(isinstance(row, (str, bytes)) for row in x)):
        needed = "tokens, (n, length) integers" if config.d_input is None else "numbers, (n, length, d_input)"
        raise InputError(f"x has texts, but this model reads {needed}; give an array, or a list of rows")
    whole = isinstance(x, (np.ndarray, Tensor))
    if not whole and not isinstance(x, Sequence):
        raise InputError(f"x is a {type(x).__name__}; give an array, a tensor, or a list with an array for each row")
    if whole and x.ndim != 3 and not (x.ndim == 2 and config.d_input in (1, None)):
        d_input = config.d_input
        expected = "(n, length)" if d_input is None else f"(n, length, {d_input})"
        raise InputError(f"x has the shape {tuple(x.shape)}; expected {expected}, or a list of rows; one row is [row]")
    rows = [as_row(f"row {i}", row, config, 1 if pieces else config.frame_length) for i, row in enumerate(x)]
    if lengths is None:
        return rows
    cut = np.asarray(lengths)
    if cut.shape != (len(rows),) or cut.dtype.kind not in "iu":
        raise InputError(f"lengths is {cut.dtype} {cut.shape}; expected an integer for each of {len(rows)} rows")
    for i, (row, n) in enumerate(zip(rows, cut)):
        if not 1 <= n <= len(row):
            raise InputError(f"lengths[{i}] is {n}; expected 1 to {len(row)}, the steps of its row")
    return [row[:n] for row, n in zip(rows, cut)]


def as_row(name: str, given: Any, config: SequenceModelConfig, least: int) -> np.ndarray:
    """(length, d_input), or (length,) of tokens; ``least`` steps. Errors: InputError that begins with ``name``."""
    try:
        row = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except (TypeError, ValueError) as error:  # a list of lists of unlike lengths; bfloat16
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    d_input = config.d_input
    kinds, what = ("iu", "tokens, integers") if d_input is None else ("biuf", "real numbers")
    if row.dtype.kind not in kinds:
        raise InputError(f"{name} is {row.dtype}; expected {what}")
    if d_input == 1 and row.ndim == 1:
        row = row[:, None]
    shape = "(length,)" if d_input is None else f"(length, {d_input})"
    if (d_input is None and row.ndim != 1) or (d_input is not None and (row.ndim != 2 or row.shape[1] != d_input)):
        raise InputError(f"{name} has the shape {row.shape}; expected {shape}: {_read(d_input)} a step")
    if len(row) < least:
        raise InputError(f"{name} has {len(row)} steps; give it at least {least}")
    return row


def _read(d_input: int | None) -> str:
    return "one token" if d_input is None else f"{d_input} number{'s' * (d_input > 1)}"


def as_batch(rows: Sequence[np.ndarray], config: SequenceModelConfig, dtype: torch.dtype) -> tuple[Tensor, Any]:
    """Rows, right-padded with zeros, as the model reads them, and their lengths; None where they are alike."""
    lengths = np.array([len(row) for row in rows])
    kind = np.result_type(*rows)
    batch = np.zeros((len(rows), int(lengths.max()), *rows[0].shape[1:]), kind)
    for place, row in zip(batch, rows):
        place[: len(row)] = row
    if config.d_input is None:
        x = torch.from_numpy(batch.astype(np.int64))
    else:
        x = torch.from_numpy(batch.astype(readable(kind), copy=False))
        x = x if config.input is not None else x.to(dtype)
    return x, None if (lengths == lengths[0]).all() else torch.from_numpy(lengths)
