"""Configs to JSON data and back, strictly; and single fields set from ``name=value``.

If a field may hold one of several configs (its type is a union of them, or an abstract base), a key ``"type"``
names the class. Infinite floats are the strings "inf" and "-inf", since JSON has no number for them. NaN is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from statewise.configuration.base import Config, current_path, no_such_field, schema
from statewise.configuration.kinds import TYPE_KEY, Either, Kind, Nested, Place, Row, Text
from statewise.configuration.words import join
from statewise.errors import ConfigError, excerpt

ConfigT = TypeVar("ConfigT", bound=Config)
Types = Mapping[str, type]


def to_dict(config: Config) -> dict[str, Any]:
    """A config as plain JSON data, with every field, so that a later change of a default does not matter.

    Errors:  ConfigError with the field, if it holds a class that could not be read back: a subclass of the declared
              one.

    >>> from statewise.models.mlp import MLPConfig
    >>> to_dict(MLPConfig(expand=2))  # doctest: +ELLIPSIS
    {'expand': 2.0, 'activation': 'gelu', 'gated': False, ..., 'weight_std': 0.02}
    """
    return config.write_fields(type(config).__name__)


def from_dict(cls: type[ConfigT], data: Any, *, types: Types | None = None, where: str = "config") -> ConfigT:
    """The config that ``data`` (as from JSON) describes; the inverse of :func:`to_dict`.

    ``types`` are the classes that a ``"type"`` key may name; ``where`` begins the path in every message. You may leave
    out fields that have a default. An int becomes a float and a list a tuple where one is declared; nothing else is
    converted.

    Errors:  ConfigError, one line, with the path: an unknown field (with the nearest known one), a missing field,
             a wrong type or value, or what the config itself refuses.

    >>> from statewise.models.mlp import MLPConfig
    >>> from_dict(MLPConfig, {"expnd": 2})
    Traceback (most recent call last):
    statewise.errors.ConfigError: config: MLPConfig has no field 'expnd'; did you mean 'expand'? Its fields: expand, ...
    """
    read: ConfigT = Nested((cls,)).read(data, Place(where, True, types or {}))
    return read


def assign(config: ConfigT, assignments: Sequence[str], *, types: Types | None = None) -> ConfigT:
    """A new config with some fields set: ``["train.optimizer.lr=3e-4", "model.layers.0.mixer.d_state=64"]``.

    A value is JSON. If that does not fit the field but a string does, the text itself is used. A list of one may be
    written as its item, ``"tasks=copying"``, if the item has no comma. You can give a whole subtree as JSON, with
    ``types`` for the names in it (those already in ``config`` are known). All fields are set before the configs check
    themselves, so values that only fit together can be given in any order.

    Errors:  ConfigError with the path; ``config`` is never changed.

    >>> from statewise.models.mlp import MLPConfig
    >>> assign(MLPConfig(), ["expand=2", "activation=silu"])  # doctest: +ELLIPSIS
    MLPConfig(expand=2.0, activation='silu', gated=False, ..., weight_std=0.02)
    """
    whole = Nested((type(config),))
    at = Place("", True, {**_types_within(config), **(types or {})})
    data: Any = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        parts = path.strip().split(".")
        if not equals or not all(parts):
            example = "write field=value, as in train.optimizer.lr=3e-4"
            raise ConfigError(f"{excerpt(assignment)} is not an assignment; {example}")
        data = _set(whole, data, parts, text.strip(), at)
    changed: ConfigT = whole.read(data, at)
    return changed


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice, and JSON does not say which one counts."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of every JSON reader in Statewise."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DuplicateKeyError(f"the key {excerpt(twice)} is there twice")
    return found


def parse_json(text: str | bytes, where: str, *, constants: bool = False) -> Any:
    """JSON, read more strictly than Python does: a key given twice is an error, and so are NaN and infinity, unless
    ``constants`` are allowed.

    Errors:  ConfigError that begins with ``where`` and gives line and column if it can.
    """

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=None if constants else refuse)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not JSON: it is not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise ConfigError(f"{where} cannot be read as JSON: it is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, what the hooks raise, and Python's of a number that is too long
        if "set_int_max_str_digits" in str(error):
            longest = sys.get_int_max_str_digits()
            raise ConfigError(f"{where} is not JSON to use: a number in it has more than {longest:,} digits") from error
        raise ConfigError(f"{where} is not JSON: {error}") from error


def _types_within(value: Any) -> dict[str, type]:
    if isinstance(value, tuple):
        return {name: cls for item in value for name, cls in _types_within(item).items()}
    if not isinstance(value, Config):
        return {}
    cls = type(value)
    return {cls.__name__: cls} | _types_within(tuple(getattr(value, name) for name in schema(cls)))


# -- setting one field -----------------------------------------------------------------------------------------------


def _set(kind: Kind, data: Any, parts: Sequence[str], text: str, at: Place) -> Any:
    """``data`` with the field that ``parts`` lead to replaced; the rest is shared, nothing is changed in place."""
    if not parts:
        return _parse(kind, text, at)
    part, rest, path = parts[0], parts[1:], at.path
    nested, row = _part_of(kind, Nested), _part_of(kind, Row)
    if isinstance(data, dict) and nested is not None:
        cls = nested.class_of(data, at)
        if part == TYPE_KEY and TYPE_KEY in data:
            raise ConfigError(f'{join(path, part)} cannot be set by itself; set {path} whole: {path}={{"type": ...}}')
        part, *rest = (*current_path(cls, part, is_group=bool(rest) or text.startswith("{")), *rest)
        if part not in schema(cls):
            where = f"{path}: " if path else ""
            if within := sorted(_paths_to(part, data, path), key=len):
                raise ConfigError(f"{where}{cls.__name__} has no field {excerpt(part)}; did you mean {within[0]!r}?")
            raise ConfigError(f"{where}{no_such_field(cls, part)}")
        return {**data, part: _set(schema(cls)[part], data[part], rest, text, at.inner(part))}
    if isinstance(data, list) and row is not None:
        if not part.isdecimal() or int(part) >= len(data):
            items = f"it has {len(data)}: use 0 to {len(data) - 1}" if data else "it is empty"
            raise ConfigError(f"{path} has no item {excerpt(part)}; {items}")
        items_kinds = row.kinds(len(data))
        assert items_kinds is not None
        value = _set(items_kinds[int(part)], data[int(part)], rest, text, at.inner(part))
        return [value if i == int(part) else x for i, x in enumerate(data)]
    if data is None and nested is not None:
        example = ", ".join(nested.candidates(at.types))
        raise ConfigError(f"{path} is null, so {join(path, part)} cannot be set; set {path} whole ({example}) as JSON")
    raise ConfigError(f"{path} is {kind.words(True)}; it has no field {excerpt(part)}")


def _paths_to(name: str, data: Any, path: str) -> Iterator[str]:
    """The paths of all fields of this name below ``path``."""
    if isinstance(data, (dict, list)):
        for part, value in data.items() if isinstance(data, dict) else enumerate(data):
            if part == name:
                yield join(path, part)
            yield from _paths_to(name, value, join(path, part))


KindT = TypeVar("KindT", bound=Kind)


def _part_of(kind: Kind, wanted: type[KindT]) -> KindT | None:
    """The kind itself, or that of a union's parts, that is ``wanted``."""
    parts = kind.kinds if isinstance(kind, Either) else (kind,)
    return next((part for part in parts if isinstance(part, wanted)), None)


def _parse(kind: Kind, text: str, at: Place) -> Any:
    """The value in normal form, as :func:`to_dict` would write it."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except DuplicateKeyError as error:
        raise ConfigError(f"{at.path}: {error}") from error
    except (ValueError, RecursionError):
        value = text
    try:
        read = kind.read(value, at)
    except ConfigError as error:
        read = _read_again(kind, value, text, at, error)
    return kind.write(read, at.path)


def _read_again(kind: Kind, value: Any, text: str, at: Place, error: ConfigError) -> Any:
    """Reads a text that is not JSON of this kind: a string that happens to be JSON, as data.source=1984, or one item of
    a list."""
    if not isinstance(value, str) and _part_of(kind, Text) is not None:
        return kind.read(text, at)
    row = _part_of(kind, Row)
    alone = text and not set(text) & set("[],")  # ["a", "b"] whose quotes a shell has taken is told how to write it
    if row is not None and row.many and isinstance(value, (str, int, float)) and alone:
        for item in (value, text):
            with suppress(ConfigError):
                return kind.read([item], at)
    raise error
