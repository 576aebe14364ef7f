"""Options of generation that must be numbers: what is none is told in one line, where it was given."""

from __future__ import annotations

import math
from numbers import Integral, Real

from statewise.errors import InputError


def is_integer(value: object) -> bool:
    """An integer of Python or NumPy; a bool is none.

    >>> is_integer(3), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A finite real number of Python or NumPy; a bool is none.

    >>> is_number(3), is_number(0.5), is_number(float("nan")), is_number("3")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_integer(name: str, value: object, least: int) -> None:
    if not is_integer(value) or value < least:  # type: ignore[operator]
        raise InputError(f"{name}={value!r} is out of range; use an integer of at least {least}")
