"""The law that every config keeps, found by walking the subclasses of ``Config``: a wrong value of any field is one
line of ours, and what was taken goes through JSON unchanged.

Nothing here reads the schema that the configs check themselves by: what is wrong is told by the declared Python types.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

import statewise
from statewise.configuration import Config, from_dict, to_dict
from statewise.errors import ConfigError, StatewiseError

HOLDS_CONFIGS = re.compile(r"^class \w+\((.*, )?\w*(Config|Settings)\):", re.MULTILINE)
# Of no field's type, whatever it is declared as
NOTHING = (
    object(), b"8", 1j, {1, 2}, {"a": 1}, lambda: 8, math.nan, torch.tensor(8), torch.zeros(3, 3), np.zeros(3), Config,
)  # fmt: skip
# Right for some fields and out of range, of another type or too deep for others
ODD = (
    None, True, False, 0, 1, 3, -1, 2**31, 2**70, -(2**70), 10**400, 10**5000,
    0.0, 0.5, 2.5, -1.0, 1e-300, 1e300, math.inf, -math.inf,
    "", "8", "no", "None", "nan", "inf", " ", "a" * 300, "\ud800", (), (1,), (2.0, 1.0), ("a", "b"), (None,), ((1,),),
    (0.5, math.nan), [], [1, 1], [0, math.inf], np.float32(0.5), np.int64(3), np.bool_(True),
)  # fmt: skip


def all_configs() -> list[type[Config]]:
    """Every class that a field could hold: those of the package that are not abstract."""
    root = Path(statewise.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if "integrations" not in file.parts and HOLDS_CONFIGS.search(file.read_text()):
            importlib.import_module(".".join(("statewise", *file.relative_to(root).with_suffix("").parts)))
    found: dict[str, type[Config]] = {}

    def walk(cls: type[Config]) -> None:
        for child in cls.__subclasses__():
            if child.__module__.startswith("statewise.") and not inspect.isabstract(child):
                found[f"{child.__module__}.{child.__qualname__}"] = child
            walk(child)

    walk(Config)
    return [found[name] for name in sorted(found)]


def check_config_laws(config: Config, types: dict[str, type]) -> None:
    """All laws, of one config that is possible."""
    check_is_frozen_and_by_name(type(config))
    check_round_trip(config, types)
    check_unknown_fields(config, types)
    for field in dataclasses.fields(config):
        check_values(config, field.name, types)


def check_is_frozen_and_by_name(cls: type[Config]) -> None:
    parameters: Any = cls.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert "__post_init__" not in vars(cls) or not inspect.signature(cls.__post_init__).parameters.keys() - {"self"}  # type: ignore[attr-defined]
    assert is_one_line(refusal(cls, 8))


def check_round_trip(config: Config, types: dict[str, type]) -> None:
    again = from_dict(type(config), json.loads(json.dumps(to_dict(config), allow_nan=False)), types=types)
    assert again == config
    assert hash(again) == hash(config)
    assert dataclasses.replace(config) == config


def check_unknown_fields(config: Config, types: dict[str, type]) -> None:
    name = f"{type(config).__name__} has no field 'no_such_field'"
    assert name in refusal(dataclasses.replace, config, no_such_field=8)
    assert name in refusal(from_dict, type(config), {**to_dict(config), "no_such_field": 8}, types=types)
    for field in dataclasses.fields(config):
        if field.default is field.default_factory is dataclasses.MISSING:
            data = {key: value for key, value in to_dict(config).items() if key != field.name}
            assert f"needs the field {field.name!r}" in refusal(from_dict, type(config), data, types=types)


def check_values(config: Config, name: str, types: dict[str, type]) -> None:
    """Whatever a field is given, there is a config that holds its declared type, or one line that names the field."""
    cls = type(config)
    declared = typing.get_type_hints(cls)[name]
    for value in (*NOTHING, *ODD):
        made = outcome(dataclasses.replace, config, **{name: value})
        if isinstance(made, StatewiseError):
            assert is_one_line(str(made)), made
            continue
        held = getattr(made, name)
        assert not any(value is one for one in NOTHING), f"{cls.__name__}.{name} takes {value!r}"
        assert holds(held, declared), f"{cls.__name__}.{name}={value!r} became {held!r}"
        check_round_trip(made, types)
    for value in NOTHING:
        said = refusal(dataclasses.replace, config, **{name: value})
        assert said.startswith(f"{cls.__name__}.{name}"), said
        assert "; expected " in said, said
    for value in ({}, {"type": "object"}, [[[[]]]], [None], "x", 0.5, -1, True):
        read = outcome(from_dict, cls, {**to_dict(config), name: value}, types=types, where="here")
        if isinstance(read, StatewiseError):
            assert str(read).startswith("here") or not isinstance(read, ConfigError), read
            assert is_one_line(str(read)), read


def holds(value: Any, declared: Any) -> bool:
    """Whether a value is of its declared type, exactly: no integer as a float, no list as a tuple."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        return holds(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return any(holds(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if type(value) is not tuple:
            return False
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(value) == len(kinds) and all(map(holds, value, kinds))
    return isinstance(value, declared) if issubclass(declared, Config) else type(value) is declared


def outcome(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call gives, or its error. A rule of a config may look at a folder, which is no ConfigError."""
    try:
        return call(*arguments, **options)
    except StatewiseError as error:
        return error


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    assert is_one_line(str(caught.value))
    return str(caught.value)


def is_one_line(text: str) -> bool:
    return bool(text) and "\n" not in text and len(text) < 2000
