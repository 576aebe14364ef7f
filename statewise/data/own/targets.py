"""What labels are: classes, or numbers to regress."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from statewise.errors import DataError, excerpt, few
from statewise.files.delimited import comma_numbers

TASKS = ("classification", "regression")
WHOLE = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")
DIGITS = re.compile(r"[+-]?\d+")  # some with zeros before them: names
REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
FEWEST_STEPS = 1 << 12  # of float32 between the least and the greatest target: answers have three digits and more
MOST_FLOAT = float(np.finfo(np.float32).max)
NOT_KNOWN = "not one that the model was trained on: {}; leave it out, or train a new model with it"


def as_targets(
    labels: np.ndarray, task: str | None, where: Callable[[int], str], known: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets, and the names of the classes: (n,) int64 and names, or (n, d_output) float32 and ().

    labels: (n,) text, whole numbers or true and false: classes, sorted; whole numbers also where text is all such, as
            in a CSV file, sorted by number. (n,) or (n, d_output) floating: numbers to regress
    task:   "regression" regresses whole numbers as well; "classification" takes floating numbers that are whole as
            classes
    where:  the place of label i, which begins a message
    known:  the classes of a trained model in their order, which the labels are of; not all have to be there

    Errors:  DataError with the place, for a label that is missing or is not like the others; for a single class, and
             for so many that they seem to be numbers; for a class that is not ``known``.
    """
    if known:
        return _among(labels, known, where), tuple(known)
    labels = _checked(labels, task, where)
    if labels.dtype.kind == "f":
        numbers = labels[:, None] if labels.ndim == 1 else labels
        _require_resolved(numbers, where)
        return numbers.astype(np.float32), ()
    names, targets = np.unique(labels.astype(str) if labels.dtype == object else labels, return_inverse=True)
    if len(names) == 1:
        raise DataError(f"{where(0)}: all labels are {excerpt(str(names[0]))}; expected two classes or more")
    if labels.dtype.kind in "iu" and len(names) > 20 and 2 * len(names) > len(labels):
        raise DataError(
            f"{where(0)}: {len(labels):,} labels are {len(names):,} whole numbers, which would be as many classes; to "
            "predict numbers say --set data.task=regression"
        )
    return targets.astype(np.int64), tuple(str(name) for name in names)


def _require_resolved(numbers: np.ndarray, where: Callable[[int], str]) -> None:
    """DataError for numbers that vary too little around a large value: a regressor learns and answers in float32, which
    would round them away."""
    spread = np.ptp(numbers, axis=0)
    step = np.spacing(np.abs(numbers).max(axis=0).astype(np.float32)).astype(np.float64)
    lost = (spread > 0) & (spread < FEWEST_STEPS * step)
    if lost.any():
        column = int(lost.argmax())
        middle = float(np.median(numbers[:, column]))
        raise DataError(
            f"{where(0)}: the labels vary by {spread[column]:.3g} around {middle:.10g}, where float32 has steps of "
            f"{step[column]:.3g}; subtract {middle:.10g} from them, and add it to the answers"
        )


def _among(labels: np.ndarray, known: Sequence[str], where: Callable[[int], str]) -> np.ndarray:
    """Which of the ``known`` classes each label is."""
    number = {name: i for i, name in enumerate(known)}
    names = [None if label is None or label != label else str(label).strip() for label in labels.tolist()]
    if not all(name in number for name in names):  # they are written in another way, as 1.0 for the class 1
        labels = _checked(labels, "classification" if labels.ndim > 1 else None, where)
        names = [str(round(x) if isinstance(x, float) and x == round(x) else x) for x in labels.tolist()]
    for i, name in enumerate(names):
        if name not in number:
            raise DataError(f"{where(i)}: the class {excerpt(str(name))} is {NOT_KNOWN.format(few(known))}")
    return np.array([number[str(name)] for name in names], np.int64)


def _checked(labels: np.ndarray, task: str | None, where: Callable[[int], str]) -> np.ndarray:
    """Labels as floating numbers to regress, or as whole numbers or text that name classes."""
    labels = _numbers_of_text(labels, where) if labels.dtype == object else labels
    missing = np.array([value is None for value in labels]) if labels.dtype == object else None
    if labels.dtype.kind == "f":
        missing = np.isnan(labels).reshape(len(labels), -1).any(1)
    if missing is not None and missing.any():
        raise DataError(f"{where(int(missing.argmax()))} has no label; write one, or leave it out")
    if labels.dtype.kind in "iub" and task == "regression":
        labels = labels.astype(np.float64)
    if labels.dtype.kind == "f" and task == "classification":
        whole = labels.ndim == 1 and (np.abs(labels) < 1 << 53).all() and (labels == np.round(labels)).all()
        if not whole:
            raise DataError(
                f"{where(0)}: the labels are floating numbers, as {labels.ravel()[0]}, and not classes; leave "
                "out --set data.task=classification to predict numbers"
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f":
        if not (np.abs(labels) <= MOST_FLOAT).all():
            bad = int((~(np.abs(labels) <= MOST_FLOAT)).reshape(len(labels), -1).any(1).argmax())
            raise DataError(f"{where(bad)}: the label is not finite in float32; fill it or drop the row")
        return labels
    if task == "regression":
        raise DataError(
            f"{where(0)}: the label {excerpt(str(labels[0]))} is not a number, but a regression needs numbers; leave "
            "out --set data.task=regression to learn classes"
        )
    return labels


def _numbers_of_text(labels: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """Python's objects as an array of numbers where all of them are; else all text, None where there is none."""
    known = [(i, value) for i, value in enumerate(labels) if value is not None]
    if not known:
        raise DataError(f"{where(0)} has no label, like all others; name the column of labels in data.label_field")
    kinds = {type(value) for _, value in known}
    if kinds != {str}:
        i, value = next((i, value) for i, value in known if type(value) is not type(known[0][1]) or len(kinds) == 1)
        raise DataError(
            f"{where(i)}: the label {excerpt(value)} is of another kind than the others; write all labels alike"
        )
    texts = [text.strip() for _, text in known]
    if len(known) == len(labels):
        if all(map(WHOLE.fullmatch, texts)):
            return np.array([int(text) for text in texts], np.int64)
        if all(map(REAL.fullmatch, texts)) and not all(map(DIGITS.fullmatch, texts)):
            return np.array(list(map(float, texts)), np.float64)
        if any("," in text for text in texts) and (numbers := comma_numbers(texts, where(0))) is not None:
            return np.array(numbers, np.float64)
    found = labels.copy()
    for (i, _), text in zip(known, texts):
        found[i] = text or None
    return found
