"""Options of generation that must be numbers: anything else is an error of one line, with the option's name."""

from __future__ import annotations

from numbers import Integral

from statewise.errors import InputError


def is_integer(value: object) -> bool:
    """An integer of Python or NumPy; a bool is none.

    >>> is_integer(3), is_integer(3.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(name: str, value: object, least: int) -> None:
    if not is_integer(value) or value < least:  # type: ignore[operator]
        raise InputError(f"{name}={value!r} is out of range; use an integer of at least {least}")
