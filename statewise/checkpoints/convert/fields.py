"""Fields of other people's configs, each read with its default and checked for its kind; what is not known, or not
supported, is refused by name and value."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from statewise.checkpoints.tensor_files import shown
from statewise.errors import CheckpointError, excerpt
from statewise.systems.rules import is_number

NO_LIMIT = (0.0, math.inf)
# Of every model of transformers with attention, whether it names the field or not: weights as they are, and no token
# reads a later one, which "is_causal": false would have it do
PLAIN = {"quantization_config": None, "is_causal": True}
LARGEST_COUNT = 2**31 - 1
_LARGEST = 3.4e38  # in place of an infinity, which JSON does not have
# How transformers writes what JSON has no number for.
_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def refuse_unknown(config: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """CheckpointError for the first field that is not known; one that is None says nothing and passes."""
    known = list(known)
    for name, value in config.items():
        if name not in known and value is not None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CheckpointError(f"{where}: the field {shown(str(name))}={excerpt(value)} is unknown{hint}")


def require(config: Mapping[str, Any], supported: Mapping[str, Any], where: str) -> None:
    """CheckpointError for a field that has another value than the only supported one."""
    for name, value in supported.items():
        if name in config and config[name] != value:
            raise CheckpointError(f"{where}: {name}={excerpt(config[name])} is not supported; expected {value!r}")


def one_name(config: Mapping[str, Any], aliases: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """The config with one name for each field. aliases: other names, as the library takes them: alias -> field

    Errors:  CheckpointError where two names of one field say different things.
    """
    for alias, name in aliases.items():
        if config.get(alias) is not None:
            if name in config and config[name] != config[alias]:
                both = f"{alias}={excerpt(config[alias])} and {name}={excerpt(config[name])}"
                raise CheckpointError(f"{where}: {both} are two names of one field; expected one value")
            config = {**config, name: config[alias]}
    return config


def count_layers(names: Iterable[str], prefix: str, where: str) -> int:
    """How many layers tensors are of whose names are ``prefix``, the number of the layer, and a dot.

    Errors:  CheckpointError for a number that is missing among them: one large number is not as many layers.
    """
    found = _layers(names, prefix)
    missing = _first_missing(found)
    if missing < len(found):
        raise CheckpointError(f"{where}: no tensor begins with {prefix}{missing}., but some with {prefix}{max(found)}.")
    return len(found)


def require_layers(n_layers: int, field: str, names: Iterable[str], prefix: str) -> None:
    """CheckpointError if a config says more layers than there are tensors for: before so many are described."""
    found = _layers(names, prefix)
    if n_layers > len(found):
        missing = f"{prefix}{_first_missing(found)}."
        raise CheckpointError(
            f"{field}={n_layers}, but there are tensors for {len(found)} layers: {missing} is missing"
        )


def _layers(names: Iterable[str], prefix: str) -> set[int]:
    pattern = re.compile(rf"{re.escape(prefix)}([0-9]{{1,9}})\.")
    return {int(match[1]) for name in names if (match := pattern.match(name))}


def _first_missing(found: set[int]) -> int:
    return next(i for i in range(len(found) + 1) if i not in found)


def section(config: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """A group of fields, empty if it is not there."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where}: {name}={excerpt(value)} is not a group of fields")
    return value


def dropout_of(config: Mapping[str, Any], default: float, where: str) -> float:
    """The field of this name; the default too where it only refers to another one."""
    value = config.get("dropout")
    return default if value is None or refers(value) else share(config, "dropout", default, where)


def share(config: Mapping[str, Any], name: str, default: float, where: str) -> float:
    """A part of what is dropped: from 0 to below 1."""
    value = config.get(name, default)
    if not is_number(value) or not 0 <= value < 1:
        raise wrong(name, value, f"a number, 0 <= {name} < 1", where)
    return float(value)


def refers(value: Any) -> bool:
    """To another field of the published configs, which what Lightning stored may not have resolved."""
    return isinstance(value, str) and value.startswith("${")


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
