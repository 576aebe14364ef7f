"""Frozen dataclasses to JSON data and back, strictly; and single fields set from ``name=value``.

The declared types of the fields are the schema. Known are bool, int, float, str, None, Literal, unions, tuples
(``tuple[X, ...]`` and ``tuple[X, Y]``) and dataclasses. Where a field may hold one of several dataclasses (its type
is a union of them, or an abstract base), a key ``"type"`` names the class. Infinite floats are the strings "inf"
and "-inf", since JSON has no number for them; NaN is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import math
import types as python_types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from statewise.errors import ConfigError, excerpt

Config = TypeVar("Config")
Types = Mapping[str, type]

TYPE_KEY = "type"
INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON data, with every field, so that a later change of a default changes nothing.

    Errors:  ConfigError naming the field if a value is not of its declared type.

    >>> from statewise.models.mlp import MLPConfig
    >>> to_dict(MLPConfig(expand=2))
    {'expand': 2.0, 'activation': 'gelu', 'gated': False, 'bias': True, 'multiple_of': 1, 'weight_std': 0.02}
    """
    return _dump(type(config), config, type(config).__name__)


def from_dict(cls: type[Config], data: Any, *, types: Types | None = None, where: str = "config") -> Config:
    """The dataclass that ``data`` (as from JSON) describes; the inverse of :func:`to_dict`.

    ``types`` are the classes that a ``"type"`` key may name; ``where`` begins the path in every message. Fields that
    have a default may be left out. An int is taken for a float and a list for a tuple; nothing else is converted.

    Errors:  ConfigError, one line, with the path: an unknown field (with the nearest known one), a missing field,
             a wrong type, or what the dataclass itself refuses.

    >>> from statewise.models.mlp import MLPConfig
    >>> from_dict(MLPConfig, {"expnd": 2})
    Traceback (most recent call last):
    statewise.errors.ConfigError: config: MLPConfig has no field 'expnd'; did you mean 'expand'? Its fields: expand, ...
    """
    return _load(cls, data, types or {}, where)


def assign(config: Config, assignments: Sequence[str], *, types: Types | None = None) -> Config:
    """A new config with some fields set: ``["train.lr=3e-4", "model.layers.0.mixer.d_state=64"]``.

    A value is JSON; where that does not fit the field but a string does, the text itself. A whole subtree can be given
    as JSON, with ``types`` for the names in it (those already in ``config`` are known). All are set before the
    dataclasses check themselves, so values that fit only together can be given in any order.

    Errors:  ConfigError naming the path; ``config`` is not changed in any case.

    >>> from statewise.models.mlp import MLPConfig
    >>> assign(MLPConfig(), ["expand=2", "activation=silu"])
    MLPConfig(expand=2.0, activation='silu', gated=False, bias=True, multiple_of=1, weight_std=0.02)
    """
    known = {**_types_within(config), **(types or {})}
    cls = type(config)
    data: Any = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        parts = path.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"{assignment!r} is not an assignment; write field=value, as in train.lr=3e-4")
        data = _set(cls, data, parts, text.strip(), known, "")
    return _load(cls, data, known, "")


class DuplicateKeyError(ValueError):
    """A key of a JSON object is there twice, and JSON does not say which is meant."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of every JSON reader here."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DuplicateKeyError(f"the key {excerpt(twice)} is there twice")
    return found


def parse_json(text: str | bytes, where: str, *, constants: bool = False) -> Any:
    """JSON without the slack of Python's reader: a key given twice is an error, and unless ``constants`` are allowed,
    NaN and infinities are.

    Errors:  ConfigError that begins with ``where`` and says line and column where it can.
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
        raise ConfigError(f"{where} is not usable JSON: it is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, and what the hooks raise
        raise ConfigError(f"{where} is not JSON: {error}") from error


# -- the schema ------------------------------------------------------------------------------------------------------


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    """Field name -> declared type."""
    hints = typing.get_type_hints(cls)
    if TYPE_KEY in hints:
        raise TypeError(f"{cls.__name__}.{TYPE_KEY}: a config field cannot have this name, which names classes in JSON")
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _alternatives(declared: Any) -> tuple[Any, ...]:
    if typing.get_origin(declared) in (typing.Union, python_types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def _dataclasses_of(declared: Any) -> tuple[type, ...]:
    return tuple(t for t in _alternatives(declared) if isinstance(t, type) and dataclasses.is_dataclass(t))


def _tuples_of(declared: Any) -> list[Any]:
    return [t for t in _alternatives(declared) if typing.get_origin(t) is tuple]


def _is_open(classes: tuple[type, ...]) -> bool:
    """Whether a value needs a ``"type"`` key: the declared classes do not settle which one it is."""
    return len(classes) > 1 or any(inspect.isabstract(cls) for cls in classes)


def _candidates(classes: tuple[type, ...], types: Types) -> dict[str, type]:
    """The classes that a ``"type"`` key may name here."""
    found = {cls.__name__: cls for cls in classes if not inspect.isabstract(cls)}
    if _is_open(classes):
        found |= {name: cls for name, cls in types.items() if issubclass(cls, classes) and not inspect.isabstract(cls)}
    return found


def _types_within(value: Any) -> dict[str, type]:
    if isinstance(value, tuple):
        return {name: cls for item in value for name, cls in _types_within(item).items()}
    if not dataclasses.is_dataclass(value):
        return {}
    cls: type = type(value)
    return {cls.__name__: cls} | _types_within(tuple(getattr(value, name) for name in _fields(cls)))


def _describe(declared: Any) -> str:
    """What is expected, in words."""
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string", type(None): "null"}
    words = []
    for alternative in _alternatives(declared):
        if typing.get_origin(alternative) is Literal:
            words += [repr(value) for value in typing.get_args(alternative)]
        elif typing.get_origin(alternative) is tuple:
            arguments = typing.get_args(alternative)
            many = arguments[-1] is Ellipsis
            words.append(f"a list of {_describe(arguments[0])}" if many else f"a list of {len(arguments)} values")
        elif alternative in names:
            words.append(names[alternative])
        else:
            words.append(alternative.__name__)
    return " or ".join(words)


def _suggest(name: str, known: Sequence[Any], title: str) -> str:
    """The nearest name, if one is near, and all of them."""
    close = difflib.get_close_matches(name, list(map(str, known)), n=1, cutoff=0.5)
    listed = f"{title}: {', '.join(map(str, known))}"
    return f"did you mean {close[0]!r}? {listed}" if close else f"{listed[:1].lower()}{listed[1:]}"


def _require_field(cls: type, name: str, path: str) -> None:
    names = list(_fields(cls))
    if name not in names:
        prefix = f"{path}: " if path else ""
        raise ConfigError(f"{prefix}{cls.__name__} has no field {excerpt(name)}; {_suggest(name, names, 'Its fields')}")


def _join(path: str, part: str | int) -> str:
    return f"{path}.{part}" if path else str(part)


def _wrong(path: str, value: Any, declared: Any) -> ConfigError:
    expected = _describe(declared)
    if isinstance(value, str) and any(t in (int, float) for t in _alternatives(declared)):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
            number = int(number) if number == int(number) else number
            return ConfigError(f"{path}={excerpt(value)} is a string, expected {expected}; drop the quotes: {number!r}")
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return ConfigError(
        f"{path}={shown} has the wrong type ({_kind(value)}), expected {expected}{_as_list(value, declared)}"
    )


def _as_list(value: Any, declared: Any) -> str:
    """How a list is written, where there is a string, as of ``tasks=["a"]`` whose quotes a shell has taken."""
    item = next((typing.get_args(one)[0] for one in _tuples_of(declared)), None)
    if not isinstance(value, str) or item not in (str, int, float):
        return ""
    parts = [part.strip() for part in value.strip("[]").split(",") if part.strip()]
    if item is not str and not all(_is_number(part) for part in parts):
        return ""
    written = ", ".join(json.dumps(part) if item is str else part for part in parts)
    return f"; write [{written}], in a shell within single quotes"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


# -- Python to JSON --------------------------------------------------------------------------------------------------


def _dump(declared: Any, value: Any, path: str) -> Any:
    classes = _dataclasses_of(declared)
    if dataclasses.is_dataclass(value):
        cls: type = type(value)
        if not (issubclass(cls, classes) if _is_open(classes) else cls in classes):
            raise _wrong(path, value, declared)
        data = {name: _dump(hint, getattr(value, name), _join(path, name)) for name, hint in _fields(cls).items()}
        return {TYPE_KEY: cls.__name__, **data} if _is_open(classes) else data
    if isinstance(value, tuple) and (tuples := _tuples_of(declared)):
        items = _item_types(tuples[0], value, path)
        return [_dump(item, x, _join(path, i)) for i, (item, x) in enumerate(zip(items, value, strict=True))]
    if isinstance(value, (list, Mapping)):
        raise _wrong(path, value, declared)
    value = _load(declared, value, {}, path)
    return ("inf" if value > 0 else "-inf") if value in (math.inf, -math.inf) else value


def _item_types(declared: Any, value: Sequence[Any], path: str) -> list[Any]:
    """The declared type of each item of a tuple."""
    arguments = typing.get_args(declared)
    if arguments[-1] is Ellipsis:
        return [arguments[0]] * len(value)
    if len(value) != len(arguments):
        raise ConfigError(f"{path} has {len(value)} values, expected {len(arguments)}")
    return list(arguments)


# -- JSON to Python --------------------------------------------------------------------------------------------------


def _load(declared: Any, data: Any, types: Types, path: str) -> Any:
    classes = _dataclasses_of(declared)
    if isinstance(data, Mapping) and classes:
        return _load_dataclass(classes, data, types, path)
    if isinstance(data, float) and math.isnan(data):
        raise ConfigError(f"{path}=NaN is not a number; expected {_describe(declared)}")
    alternatives = _alternatives(declared)
    errors = {}
    for alternative in alternatives:
        try:
            return _load_plain(alternative, data, types, path)
        except ConfigError as error:
            errors[alternative] = error
    if isinstance(data, (list, tuple)) and (tuples := _tuples_of(declared)):
        raise errors[tuples[0]]  # what is wrong inside the list says more than "not null"
    if isinstance(data, str) and (literals := [t for t in alternatives if typing.get_origin(t) is Literal]):
        raise errors[literals[0]]
    raise errors[declared] if len(alternatives) == 1 else _wrong(path, data, declared)


def _load_plain(declared: Any, data: Any, types: Types, path: str) -> Any:
    """A value that is no object. ``bool`` is a subclass of ``int`` in Python and of nothing here."""
    origin = typing.get_origin(declared)
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise _wrong(path, data, declared)
        items = _item_types(declared, data, path)
        return tuple(_load(item, x, types, _join(path, i)) for i, (item, x) in enumerate(zip(items, data, strict=True)))
    if origin is Literal:
        known = typing.get_args(declared)
        for value in known:
            if type(value) is type(data) and value == data:
                return value
        raise ConfigError(f"{path}={excerpt(data)} is unknown; {_suggest(str(data), known, 'Use one of')}")
    if declared is float:
        return _load_float(data, path)
    if declared in (bool, int, str, type(None)):
        if type(data) is declared:
            return data
        raise _wrong(path, data, declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        raise _wrong(path, data, declared)
    raise TypeError(f"{path}: a config field cannot be declared as {declared}")


def _load_float(data: Any, path: str) -> float:
    if isinstance(data, str) and data in INFINITIES:
        return INFINITIES[data]
    if type(data) not in (int, float):
        raise _wrong(path, data, float)
    try:
        return float(data)
    except OverflowError as error:
        raise ConfigError(f"{path} is an integer too large for a number with a fraction; use a smaller one") from error


def _load_dataclass(classes: tuple[type, ...], data: Mapping[str, Any], types: Types, path: str) -> Any:
    cls = _class_of(classes, data, types, path)
    values = {}
    for name in data:
        if name == TYPE_KEY:
            continue
        _require_field(cls, name, path)
    for name, hint in _fields(cls).items():
        if name in data:
            values[name] = _load(hint, data[name], types, _join(path, name))
    prefix = f"{path}: " if path else ""
    required = [field.name for field in dataclasses.fields(cls) if _has_no_default(field)]
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigError(
            f"{prefix}{cls.__name__} needs the field {missing[0]!r} ({_describe(_fields(cls)[missing[0]])})"
        )
    try:
        return cls(**values)
    except ValueError as error:  # its own checks; ConfigError is one
        raise ConfigError(str(error) if path and str(error).startswith(path) else f"{prefix}{error}") from error


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _class_of(classes: tuple[type, ...], data: Mapping[str, Any], types: Types, path: str) -> type:
    candidates = _candidates(classes, types)
    if TYPE_KEY in data:
        name = data[TYPE_KEY]
        if not isinstance(name, str):
            raise _wrong(_join(path, TYPE_KEY), name, str)
        if name in candidates:
            return candidates[name]
        raise ConfigError(
            f"{_join(path, TYPE_KEY)}={excerpt(name)} is unknown here; {_suggest(name, list(candidates), 'Known')}"
        )
    if _is_open(classes):
        raise ConfigError(f'{path} needs a "type" that names its class; known: {", ".join(candidates)}')
    return classes[0]


# -- setting one field -----------------------------------------------------------------------------------------------


def _set(declared: Any, data: Any, parts: Sequence[str], text: str, types: Types, path: str) -> Any:
    """``data`` with the field that ``parts`` lead to replaced; the rest is shared, nothing is changed in place."""
    if not parts:
        return _parse(declared, text, types, path)
    part, rest = parts[0], parts[1:]
    if isinstance(data, dict):
        cls = _class_of(_dataclasses_of(declared), data, types, path)
        if part == TYPE_KEY and TYPE_KEY in data:
            raise ConfigError(f'{_join(path, part)} cannot be set alone; set {path} whole: {path}={{"type": ...}}')
        _require_field(cls, part, path)
        value = _set(_fields(cls)[part], data[part], rest, text, types, _join(path, part))
        return {**data, part: value}
    if isinstance(data, list):
        if not part.isdecimal() or int(part) >= len(data):
            items = f"it has {len(data)}: use 0 to {len(data) - 1}" if data else "it is empty"
            raise ConfigError(f"{path} has no item {excerpt(part)}; {items}")
        item = _item_types(_tuples_of(declared)[0], data, path)[int(part)]
        value = _set(item, data[int(part)], rest, text, types, _join(path, part))
        return [value if i == int(part) else x for i, x in enumerate(data)]
    if data is None and (classes := _dataclasses_of(declared)):
        example = ", ".join(_candidates(classes, types))
        raise ConfigError(f"{path} is null, so {_join(path, part)} cannot be set; set {path} whole ({example}) as JSON")
    raise ConfigError(f"{path} is {_describe(declared)}; it has no field {excerpt(part)}")


def _parse(declared: Any, text: str, types: Types, path: str) -> Any:
    """The value in normal form, as :func:`to_dict` would write it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    try:
        loaded = _load(declared, value, types, path)
    except ConfigError:
        if isinstance(value, str) or str not in _alternatives(declared):
            raise
        loaded = text  # a string field given something that happens to be JSON: data.source=1984
    return _dump(declared, loaded, path)
