"""How errors of configs show values and names: in one line, whatever they are."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LONGEST_SHOWN = 60
LONGEST_LIST = 120  # characters of names in an error


def join(path: str, part: str | int) -> str:
    return f"{path}.{part}" if path else str(part)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's. Arrays, and tensors of one number, are not taken for numbers."""
    return value.item() if isinstance(value, np.generic) else value


def shown(value: Any) -> str:
    """A value in one short line, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an integer with thousands of digits, and of what is not ours
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def type_name(value: Any) -> str:
    """
    >>> type_name(None), type_name(True), type_name(2.5), type_name(())
    ('null', 'boolean', 'number', 'tuple')
    """
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def suggest(
    name: str, known: Sequence[Any], title: str, near: Mapping[str, str] | None = None, *, all_by: str | None = None
) -> str:
    """The nearest name, if one is near, and all of them.

    near:   the names to look among, and how each is shown
    all_by: what lists all: where they are too many for a line, it is named instead, behind the nearest three

    >>> suggest("s4e", ["s4", "s4d", "mamba"], "Mixers")
    "did you mean 's4'? Mixers: s4, s4d, mamba"
    >>> suggest("s4e", ["s4", "s4d", *map(str, range(60))], "Mixers", all_by="docs/layers.md")
    "did you mean 's4' or 's4d'? All 62: docs/layers.md"
    """
    told = {str(one): str(one) for one in known} if near is None else near
    listed = f"{title}: {', '.join(map(str, known))}"
    too_long = all_by is not None and len(listed) > LONGEST_LIST
    n, cutoff = (3, 0.6) if too_long else (1, 0.5)
    close = difflib.get_close_matches(name, list(told), n=n, cutoff=cutoff)
    if too_long:
        listed = f"All {len(known)}: {all_by}"
    if not close:
        return f"{listed[:1].lower()}{listed[1:]}"
    *others, last = [repr(told[one]) for one in close]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}? {listed}"


def as_number(text: str) -> float | None:
    with contextlib.suppress(ValueError, OverflowError):
        return float(text)
    return None


def without_quotes(value: Any) -> str:
    number = as_number(value) if isinstance(value, str) else None
    if number is None or not math.isfinite(number):
        return ""
    return f"; drop the quotes: {int(number) if number == int(number) else number!r}"
