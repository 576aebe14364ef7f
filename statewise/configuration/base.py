"""The base of every config: a frozen dataclass that checks its fields when you make it."""

from __future__ import annotations

import abc
import dataclasses
import functools
import types as python_types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from statewise.configuration.kinds import (
    TYPE_KEY,
    Boolean,
    Choice,
    Either,
    Integer,
    Kind,
    Nested,
    Null,
    Number,
    Place,
    Row,
    Text,
)
from statewise.configuration.types import Condition, OneOf, Words
from statewise.configuration.words import join, suggest
from statewise.errors import ConfigError, excerpt

PLAIN: dict[Any, type[Kind]] = {bool: Boolean, int: Integer, float: Number, str: Text, type(None): Null}


class ConfigType(abc.ABCMeta):
    """Checks the arguments before ``__init__`` has them, so that a class has nothing to call and cannot forget it.

    Type checkers do not see it: to them a config is the dataclass that it is.
    """

    if not TYPE_CHECKING:

        def __call__(cls, *unnamed: Any, **fields: Any) -> Any:
            if unnamed:
                raise ConfigError(f"{cls.__name__} needs its fields by name: {', '.join(schema(cls))}")
            return make(cls, fields, Place(cls.__name__), "")


@dataclass(frozen=True, kw_only=True)
class Config(metaclass=ConfigType):
    """A description in plain values: numbers, names, tuples and other configs, which JSON can hold.

    A subclass is a dataclass, frozen and with fields by name. Declare each field with a type of
    :mod:`~statewise.configuration.types`: then it is checked whenever a config is made: in code, by
    ``dataclasses.replace`` or from JSON. It is kept in one form: a list as a tuple, an integer as a float if a float is
    declared, a NumPy number as Python's. ``__post_init__`` only has to check rules between fields.

    Errors:  ConfigError, one line that names the class, the field and what is expected.

        @dataclass(frozen=True, kw_only=True)
        class FilterConfig(Config):
            d_state: Count = 64
            dropout: Fraction = 0.0

    >>> from statewise.mixers.s4d import S4DConfig
    >>> S4DConfig(d_state=0)
    Traceback (most recent call last):
    statewise.errors.ConfigError: S4DConfig.d_state=0 is out of range; expected an integer of at least 1

    without_type: JSON without a "type" key is of this class where it may be of several: a field took it before it
                  took others
    former_names: names that fields had before, and their names now: {"lr": "optimizer.lr"}. JSON may still use them
    """

    without_type: ClassVar[bool] = False
    former_names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def read_fields(cls, data: Mapping[str, Any], at: Place) -> Self:
        """The config that this JSON object describes, its class already known."""
        fields = with_current_names(cls, {name: value for name, value in data.items() if name != TYPE_KEY}, at)
        config: Self = make(cls, fields, at, f"{at.path}: " if at.path else "")
        return config

    def write_fields(self, path: str) -> dict[str, Any]:
        """Every field as JSON data."""
        return {name: kind.write(getattr(self, name), join(path, name)) for name, kind in schema(type(self)).items()}


def make(cls: Any, fields: Mapping[str, Any], at: Place, prefix: str) -> Any:
    """The config with these fields, each checked once. ``prefix`` begins the errors about the whole."""
    kinds = schema(cls)
    for name in fields:
        if name not in kinds:
            raise ConfigError(f"{prefix}{no_such_field(cls, name)}")
    given = {name: kind.read(fields[name], at.inner(name)) for name, kind in kinds.items() if name in fields}
    for field in dataclasses.fields(cls):
        if field.name not in given and field.default is field.default_factory is dataclasses.MISSING:
            expected = kinds[field.name].words(at.json)
            raise ConfigError(f"{prefix}{cls.__name__} needs the field {field.name!r} ({expected})")
    try:
        return type.__call__(cls, **{**defaults(cls), **given})
    except ValueError as error:  # its rules between fields; ConfigError is one
        if not at.json:
            raise
        raise ConfigError(str(error) if str(error).startswith(at.path) else f"{prefix}{error}") from error


def no_such_field(cls: Any, name: str) -> str:
    """Names the nearest field, of this config or of one that it has, and all of this one."""
    if name in cls.former_names:
        return f"{cls.__name__} has no field {excerpt(name)} any more; use {cls.former_names[name]}"
    near = {field: field for field in schema(cls)}
    for group, kind in schema(cls).items():
        if isinstance(kind, Nested) and not kind.is_open:
            near = {field: join(group, field) for field in schema(kind.classes[0])} | near
    hint = suggest(name, list(schema(cls)), "Its fields", near, all_by=f"help({cls.__name__})")
    if not hint.startswith("did you mean"):  # then which there are helps more than a short line
        hint = suggest(name, list(schema(cls)), "Its fields", near)
    return f"{cls.__name__} has no field {excerpt(name)}; {hint}"


def current_path(cls: Any, name: str, *, is_group: bool) -> list[str]:
    """Where a field stands now. A former name that is now a group's is the group where ``is_group``: what it is given
    has fields of its own.
    """
    former = cls.former_names.get(name)
    return [name] if former is None or (is_group and name in schema(cls)) else former.split(".")


def with_current_names(cls: Any, data: Mapping[str, Any], at: Place) -> dict[str, Any]:
    """JSON data with each value that has a former name put where it stands now.

    Errors:  ConfigError for a field that is there by both names.
    """
    paths = {name: current_path(cls, name, is_group=isinstance(value, Mapping)) for name, value in data.items()}
    current = {name: data[name] for name, path in paths.items() if path == [name]}
    for name, path in paths.items():
        if path == [name]:
            continue
        inner: Any = current
        *groups, field = path
        for group in groups:
            before = inner.get(group, {})
            if not isinstance(before, Mapping):  # of a wrong type, which whoever reads it says
                inner = {}
                break
            inner[group] = dict(before)
            inner = inner[group]
        if field in inner:
            both = f"{join(at.path, name)} and {join(at.path, '.'.join(path))}"
            raise ConfigError(f"{both} are the same field; leave out the first")
        inner[field] = data[name]
    return current


@functools.cache
def schema(cls: Any) -> dict[str, Kind]:
    """Field -> what it takes. Worked out once for a class."""
    hints = typing.get_type_hints(cls, include_extras=True)
    if TYPE_KEY in hints:
        raise TypeError(f"{cls.__name__}.{TYPE_KEY}: a config field cannot have this name, which names classes in JSON")
    return {field.name: kind_of(hints[field.name], f"{cls.__name__}.{field.name}") for field in dataclasses.fields(cls)}


@functools.cache
def defaults(cls: Any) -> dict[str, Any]:
    """Field -> its default in the form that a config holds."""
    return {
        field.name: schema(cls)[field.name].read(field.default, Place(f"{cls.__name__}.{field.name}"))
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


def kind_of(declared: Any, where: str) -> Kind:
    """What a declared type means.

    Errors:  TypeError for a type that JSON could not hold, or no config.
    """
    if typing.get_origin(declared) is not Annotated:
        return _plain_kind(declared, (), where)
    declared, *notes = typing.get_args(declared)
    conditions = tuple(note for note in notes if isinstance(note, Condition))
    choices = [note for note in notes if isinstance(note, OneOf)]
    kind = Choice(tuple(choices[0].values), conditions) if choices else _plain_kind(declared, conditions, where)
    kind.own_words = next((note.text for note in notes if isinstance(note, Words)), None)
    return kind


def _plain_kind(declared: Any, conditions: tuple[Condition, ...], where: str) -> Kind:
    arguments, origin = typing.get_args(declared), typing.get_origin(declared)
    if origin in (typing.Union, python_types.UnionType):
        configs = [one for one in arguments if _is_config(one)]
        rest = [kind_of(one, where) for one in arguments if not _is_config(one)]
        if not rest:
            return Nested(configs, conditions)
        return Either([Nested(configs), *rest] if configs else rest, conditions)
    if origin is Literal:
        return Choice(arguments, conditions)
    if origin is tuple:
        many = arguments[-1] is Ellipsis
        return Row([kind_of(one, where) for one in arguments if one is not Ellipsis], many, conditions)
    if declared in PLAIN:
        return PLAIN[declared](conditions)
    if _is_config(declared):
        return Nested((declared,), conditions)
    raise TypeError(f"{where}: a config field cannot be declared as {declared}")


def _is_config(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Config)
