"""The fields of Mamba's configs, each read with its default and checked for its kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from statewise.errors import CheckpointError, excerpt
from statewise.systems.rules import is_number

NO_LIMIT = (0.0, math.inf)
LARGEST_COUNT = 2**31 - 1
_LARGEST = 3.4e38  # in place of an infinity, which JSON does not have
# How transformers writes what JSON has no number for.
_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def count(config: Mapping[str, Any], name: str, default: int | None, where: str, *, at_least: int = 1) -> int:
    """An integer; a default of None means that the field has to be there."""
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise wrong(name, value, f"an integer of at least {at_least}", where)
    if value > LARGEST_COUNT:
        raise CheckpointError(f"{where}: {name} has {len(str(value))} digits; expected at most {LARGEST_COUNT}")
    return value


def flag(config: Mapping[str, Any], name: str, default: bool, where: str) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false", where)
    return value


def number(config: Mapping[str, Any], name: str, default: float, where: str) -> float:
    """A number above 0, not an infinity."""
    value = config.get(name, default)
    if not is_number(value) or not 0 < value < math.inf:
        raise wrong(name, value, "a number above 0", where)
    return float(value)


def interval(config: Mapping[str, Any], name: str, default: tuple[float, float], where: str) -> tuple[float, float]:
    """Two numbers, 0 <= low < high, of which the second may be an infinity."""
    value = config.get(name, default)
    if isinstance(value, (list, tuple)):
        ends: list[Any] = [
            _INFINITIES.get(str(end.get("__float__"))) if isinstance(end, Mapping) else end for end in value
        ]
        if len(ends) == 2 and all(map(is_number, ends)) and 0 <= ends[0] <= ends[1]:
            return float(ends[0]), float(ends[1])
    raise wrong(name, value, "two numbers, 0 <= low <= high", where)


def bounded(name: str, limit: tuple[float, float]) -> dict[str, list[float]]:
    """The field of a limit of dt, empty for none: no limit is everybody's default."""
    return {} if limit == NO_LIMIT else {name: [min(end, _LARGEST) for end in limit]}


def wrong(name: str, value: Any, expected: str, where: str) -> CheckpointError:
    return CheckpointError(f"{where}: {name}={excerpt(value)}; expected {expected}")
