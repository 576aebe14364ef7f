"""Fields of other people's configs: what is not known, or not supported, is refused by name and value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from statewise.errors import CheckpointError


def refuse_unknown(config: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """CheckpointError for the first field that is not known; one that is None says nothing and passes."""
    known = list(known)
    for name, value in config.items():
        if name not in known and value is not None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CheckpointError(f"{where}: the field {name}={value!r} is not known here{hint}")


def require(config: Mapping[str, Any], supported: Mapping[str, Any], where: str) -> None:
    """CheckpointError for a field that has another value than the only supported one."""
    for name, value in supported.items():
        if name in config and config[name] != value:
            raise CheckpointError(f"{where}: {name}={config[name]!r} is not supported, only {value!r}")


def section(config: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """A group of fields, empty if it is not there."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where}: {name}={value!r} is no group of fields")
    return value
