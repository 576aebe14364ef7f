"""Answers: one for each row that you asked about, or for each step of it; as arrays, as rows, as a table."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from statewise.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Answers(abc.ABC):
    """n answers, in the order of the rows.

    row:  (n,) int64, which row each answer belongs to
    step: (n,) int64, and which step of it; None from a model that gives one answer for a whole row
    asked, asked_by: (n,) what each row is called: the file that it comes from ("file"), the line of a text, from 1
        ("line"), or what a table calls it (the name of that column); None where rows have only numbers
    kept: (n,) for each column of the data that was to be kept
    """

    row: np.ndarray
    step: np.ndarray | None = None
    asked: np.ndarray | None = None
    asked_by: str = "file"
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row)

    @abc.abstractmethod
    def own_columns(self) -> dict[str, np.ndarray]:
        """What was answered: (n,) for each name."""

    def columns(self) -> dict[str, np.ndarray]:
        """(n,) for each name: "row", what it is called if it has a name, what was kept, "step" where there are steps,
        and what was answered.

        Errors:  InputError for a column to keep that is called as one of these.
        """
        own = self.own_columns()
        taken = {"row", "step", *own}
        name = self.asked_by if self.asked_by not in taken else "name"
        names = {} if self.asked is None else {name: self.asked}
        steps = {} if self.step is None else {"step": self.step}
        kept = {column: cells for column, cells in self.kept.items() if column not in names}
        for column in kept:
            if column in {"row", *steps, *own}:
                raise InputError(
                    f"the answers have a column {column!r} of their own; rename that column of the data to keep it"
                )
        return {"row": self.row, **names, **kept, **steps, **own}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict of plain values for each answer."""
        columns = self.columns()
        for values in zip(*(column.tolist() for column in columns.values())):
            yield dict(zip(columns, values))

    def to_frame(self) -> Any:
        """A pandas DataFrame. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.columns())


@dataclass(frozen=True, kw_only=True)
class Classes(Answers):
    """names: of the classes   logits: (n, n_classes), what the model gives"""

    names: tuple[str, ...]
    logits: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """(n,) str: the most likely class of each."""
        return np.array(self.names)[self.logits.argmax(1)]

    @property
    def probabilities(self) -> np.ndarray:
        """(n, n_classes) float64, rows that sum to 1."""
        likeliest = self.logits.max(1, keepdims=True)
        shares = np.exp(self.logits.astype(np.float64) - likeliest)
        found: np.ndarray = shares / shares.sum(1, keepdims=True)
        return found

    def own_columns(self) -> dict[str, np.ndarray]:
        """The most likely class, its probability, and that of each class as "p(name)"."""
        shares = self.probabilities
        each = {f"p({name})": share for name, share in zip(self.names, shares.T)}
        return {"class": self.labels, "probability": shares.max(1), **each}


@dataclass(frozen=True, kw_only=True)
class Numbers(Answers):
    """values: (n, d_output), the regressed numbers"""

    values: np.ndarray

    def own_columns(self) -> dict[str, np.ndarray]:
        """ "value", or "value 0" and so on where there are several."""
        return _numbered("value", self.values)


@dataclass(frozen=True, kw_only=True)
class Embeddings(Answers):
    """values: (n, d_model), what the model's head reads: the pooled features"""

    values: np.ndarray

    def own_columns(self) -> dict[str, np.ndarray]:
        return _numbered("feature", self.values)


@dataclass(frozen=True, kw_only=True)
class Likelihoods(Answers):
    """log_likelihoods: (n,) float64, in nats, of whole texts   tokens, n_bytes: (n,) int64, how long each is"""

    log_likelihoods: np.ndarray
    tokens: np.ndarray
    n_bytes: np.ndarray

    def own_columns(self) -> dict[str, np.ndarray]:
        bits = -self.log_likelihoods / np.log(2) / self.n_bytes
        return {"log_likelihood": self.log_likelihoods, "tokens": self.tokens, "bits_per_byte": bits}


def joined(parts: Sequence[Answers]) -> Answers:
    """Answers of one kind, one after the other."""
    first = parts[0]
    together: dict[str, Any] = {}
    for one in fields(first):
        values = [getattr(part, one.name) for part in parts]
        together[one.name] = _over(values)
    return type(first)(**together)


def taken(answers: Answers, order: np.ndarray) -> Answers:
    """Some of them, in this order."""
    chosen = {one.name: getattr(answers, one.name) for one in fields(answers) if one.name != "kept"}
    chosen["kept"] = {name: cells[order] for name, cells in answers.kept.items()}
    return type(answers)(**{k: v[order] if isinstance(v, np.ndarray) else v for k, v in chosen.items()})


def _over(values: list[Any]) -> Any:
    """Arrays, or arrays by name, one after the other; of anything else the first."""
    if isinstance(values[0], Mapping):
        return {name: np.concatenate([value[name] for value in values]) for name in values[0]}
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else values[0]


def _numbered(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if values.shape[1] == 1:
        return {name: values[:, 0]}
    return {f"{name} {i}": column for i, column in enumerate(values.T)}
