"""What the declared type of a field means: which values it takes, in Python and from JSON, and how they are written.

This is the one place that knows types. A kind is made once a field: :func:`statewise.configuration.base.schema`.
"""

from __future__ import annotations

import abc
import contextlib
import inspect
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from statewise.configuration.types import Condition
from statewise.configuration.words import (
    LONGEST_SHOWN,
    as_number,
    join,
    plain,
    shown,
    suggest,
    type_name,
    without_quotes,
)
from statewise.errors import ConfigError, excerpt

TYPE_KEY = "type"
ALL_TYPES = "the Reference, in the documentation"
INFINITIES = {"inf": math.inf, "-inf": -math.inf}
LARGEST = (2 - 2**-23) * 2.0**127  # of a number: float32 has none beyond
LARGEST_BITS = 1024  # of an integer; Python writes none with more than 4,300 digits


class Place(NamedTuple):
    """Where a value stands.

    path:  what the error begins with
    json:  whether it comes from JSON, where "inf" is a number and an object a config, and None is called null
    types: the classes that a ``"type"`` key may name
    """

    path: str
    json: bool = False
    types: Mapping[str, type] = {}

    def inner(self, part: str | int) -> Place:
        return self._replace(path=join(self.path, part))


class Kind(abc.ABC):
    """One declared type. ``conditions`` are those beside the type, and ``own_words`` say what both of them mean."""

    own_words: str | None = None

    def __init__(self, conditions: Sequence[Condition] = ()) -> None:
        self.conditions = tuple(conditions)

    @abc.abstractmethod
    def takes(self, value: Any, at: Place) -> bool:
        """Whether the value is of this type, whatever its size."""

    @abc.abstractmethod
    def noun(self, json: bool) -> str:
        """The type in words, without its conditions."""

    def convert(self, value: Any, at: Place) -> Any:
        """A value of this type in its one form: a list as a tuple, an integer as a float where one is declared."""
        return value

    def write(self, value: Any, path: str) -> Any:
        """As JSON data."""
        return value

    def words(self, json: bool) -> str:
        """What is expected."""
        if self.own_words is not None:
            return self.own_words
        return self.noun(json) + "".join(condition.expected for condition in self.conditions)

    def read(self, value: Any, at: Place, expected: str | None = None) -> Any:
        """The value as the config holds it. ``expected``: the words of the whole field, where this is a part of it.

        Errors:  ConfigError that begins with the path.
        """
        value = plain(value)
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{at.path}=NaN is not a number; expected {expected or self.words(at.json)}")
        if not self.takes(value, at):
            raise self.refusal(value, at, expected)
        held = self.convert(value, at)
        for condition in self.conditions:
            if not condition.holds(held):
                found = f"{at.path}={shown(value)} {condition.complaint}"
                raise ConfigError(f"{found}; expected {expected or self.words(at.json)}")
        return held

    def refusal(self, value: Any, at: Place, expected: str | None = None) -> ConfigError:
        """The error for a value of a wrong type."""
        found = f"{at.path}={shown(value)} has the wrong type ({type_name(value)})"
        return ConfigError(f"{found}; expected {expected or self.words(at.json)}{self.hint(value)}")

    def hint(self, value: Any) -> str:
        """What to do about a value of a wrong type, if that is known."""
        if isinstance(value, np.ndarray) or type_name(value) in ("Tensor", "Parameter"):
            return "; use .item() or .tolist()"
        return ""


class Null(Kind):
    def takes(self, value: Any, at: Place) -> bool:
        return value is None

    def noun(self, json: bool) -> str:
        return "null" if json else "None"


class Boolean(Kind):
    def takes(self, value: Any, at: Place) -> bool:
        return isinstance(value, bool)

    def noun(self, json: bool) -> str:
        return "true or false" if json else "True or False"


class Text(Kind):
    def takes(self, value: Any, at: Place) -> bool:
        return isinstance(value, str)

    def noun(self, json: bool) -> str:
        return "a string"

    def hint(self, value: Any) -> str:
        return "; use str(path)" if isinstance(value, os.PathLike) else super().hint(value)


class Integer(Kind):
    """``bool`` is a subclass of ``int`` in Python and of nothing here."""

    def takes(self, value: Any, at: Place) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)

    def convert(self, value: Any, at: Place) -> Any:
        number = int(value)
        if number.bit_length() > LARGEST_BITS:
            raise ConfigError(f"{at.path} is an integer of {number.bit_length()} bits; expected {self.words(at.json)}")
        return number

    def noun(self, json: bool) -> str:
        return "an integer"

    def hint(self, value: Any) -> str:
        return without_quotes(value) or super().hint(value)


class Number(Kind):
    def takes(self, value: Any, at: Place) -> bool:
        if at.json and isinstance(value, str):
            return value in INFINITIES
        return isinstance(value, (float, numbers.Integral)) and not isinstance(value, bool)

    def convert(self, value: Any, at: Place) -> Any:
        if isinstance(value, str):
            return INFINITIES[value]
        try:
            number = float(value)
        except OverflowError as error:
            raise ConfigError(
                f"{at.path} is an integer too large for a floating-point number; use a smaller one"
            ) from error
        if LARGEST < abs(number) < math.inf:  # PyTorch refuses it, with an error of its own, where it meets float32
            found = f"{at.path}={shown(value)} is out of range"
            raise ConfigError(f"{found}; expected {self.words(at.json)}, its size at most {LARGEST:.2g}")
        return number

    def write(self, value: Any, path: str) -> Any:
        return ("inf" if value > 0 else "-inf") if math.isinf(value) else float(value)

    def noun(self, json: bool) -> str:
        return "a number"

    def hint(self, value: Any) -> str:
        return without_quotes(value) or super().hint(value)


class Choice(Kind):
    """One of some values, mostly names."""

    def __init__(self, values: Sequence[Any], conditions: Sequence[Condition] = ()) -> None:
        super().__init__(conditions)
        self.values = tuple(values)

    def takes(self, value: Any, at: Place) -> bool:
        return any(type(one) is type(value) for one in self.values)

    def convert(self, value: Any, at: Place) -> Any:
        if value in self.values:
            return value
        raise ConfigError(f"{at.path}={shown(value)} is unknown; {suggest(str(value), self.values, 'Use one of')}")

    def noun(self, json: bool) -> str:
        return " or ".join(map(repr, self.values))


class Row(Kind):
    """A tuple: of any length, all items alike, or of a fixed number of items, each of its own kind. In JSON it is a
    list.
    """

    def __init__(self, items: Sequence[Kind], many: bool, conditions: Sequence[Condition] = ()) -> None:
        super().__init__(conditions)
        self.items, self.many = tuple(items), many

    def takes(self, value: Any, at: Place) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))

    def convert(self, value: Any, at: Place) -> Any:
        kinds = self.kinds(len(value))
        if kinds is None:
            raise ConfigError(f"{at.path}={shown(value)} has {len(value)} values; expected {self.words(at.json)}")
        return tuple(kind.read(x, at.inner(i)) for i, (kind, x) in enumerate(zip(kinds, value, strict=True)))

    def kinds(self, n: int) -> tuple[Kind, ...] | None:
        """The kind of each of n items; None if there are not that many."""
        if self.many:
            return self.items * n
        return self.items if len(self.items) == n else None

    def write(self, value: Any, path: str) -> Any:
        kinds = self.kinds(len(value)) or ()
        return [kind.write(x, join(path, i)) for i, (kind, x) in enumerate(zip(kinds, value, strict=True))]

    def noun(self, json: bool) -> str:
        if self.many:
            return f"a list of {self.items[0].words(json)}"
        alike = len({item.words(json) for item in self.items}) == 1
        each = f", each {self.items[0].words(json)}" if alike else ""
        return f"a list of {len(self.items)} values{each}"

    def hint(self, value: Any) -> str:
        """How a list is written, where there is a string, as of ``tasks=["a"]`` whose quotes a shell has taken."""
        item = self.items[0]
        if not isinstance(value, str) or not isinstance(item, (Text, Choice, Integer, Number)):
            return super().hint(value)
        if len(value) > LONGEST_SHOWN:
            return ""
        parts = [part.strip() for part in value.strip("[]").split(",") if part.strip()]
        quoted = isinstance(item, (Text, Choice))
        if not quoted and any(as_number(part) is None for part in parts):
            return ""
        written = ", ".join(json.dumps(part) if quoted else part for part in parts)
        return f"; write [{written}], in a shell within single quotes"


class Nested(Kind):
    """A config of one of some classes. It has checked itself, unless it is still JSON."""

    def __init__(self, classes: Sequence[Any], conditions: Sequence[Condition] = ()) -> None:
        super().__init__(conditions)
        self.classes = tuple(classes)

    @property
    def is_open(self) -> bool:
        """Whether a ``"type"`` key may name the class: the declared classes do not settle which one it is."""
        return len(self.classes) > 1 or any(inspect.isabstract(cls) for cls in self.classes)

    @property
    def default(self) -> Any:
        """The class that JSON without a ``"type"`` key is of, and that is written without one; None: there is none."""
        if not self.is_open:
            return self.classes[0]
        return next((cls for cls in self.classes if cls.without_type), None)

    def takes(self, value: Any, at: Place) -> bool:
        return isinstance(value, self.classes) or (at.json and isinstance(value, Mapping))

    def convert(self, value: Any, at: Place) -> Any:
        if isinstance(value, self.classes):
            return value
        return self.class_of(value, at).read_fields(value, at)

    def write(self, value: Any, path: str) -> Any:
        cls = type(value)
        if not self.is_open and cls not in self.classes:  # it would be read as the class that is declared
            raise self.refusal(value, Place(path))
        data = value.write_fields(path)
        return data if cls is self.default else {TYPE_KEY: cls.__name__, **data}

    def noun(self, json: bool) -> str:
        return " or ".join(cls.__name__ for cls in self.classes)

    def candidates(self, types: Mapping[str, type]) -> dict[str, Any]:
        """The classes that a ``"type"`` key may name here."""
        found = {cls.__name__: cls for cls in self.classes}
        if self.is_open:
            found |= {name: cls for name, cls in types.items() if issubclass(cls, self.classes)}
        return {name: cls for name, cls in found.items() if not inspect.isabstract(cls)}

    def class_of(self, data: Mapping[str, Any], at: Place) -> Any:
        """The class that this JSON object is of."""
        candidates = self.candidates(at.types)
        if TYPE_KEY in data:
            name = Text().read(data[TYPE_KEY], at.inner(TYPE_KEY))
            if name in candidates:
                return candidates[name]
            found = f"{join(at.path, TYPE_KEY)}={excerpt(name)} is unknown here"
            raise ConfigError(f"{found}; {suggest(name, list(candidates), 'Known', all_by=ALL_TYPES)}")
        if self.default is None:
            raise ConfigError(f'{at.path} needs a "type" that names its class; known: {", ".join(candidates)}')
        return self.default


class Either(Kind):
    """A union."""

    def __init__(self, kinds: Sequence[Kind], conditions: Sequence[Condition] = ()) -> None:
        super().__init__(conditions)
        self.kinds = tuple(kinds)

    def takes(self, value: Any, at: Place) -> bool:
        return any(kind.takes(value, at) for kind in self.kinds)

    def convert(self, value: Any, at: Place) -> Any:
        fitting = [kind for kind in self.kinds if kind.takes(value, at)]
        for kind in fitting[:-1]:
            with contextlib.suppress(ConfigError):
                return kind.read(value, at)
        return fitting[-1].read(value, at, self.words(at.json))

    def write(self, value: Any, path: str) -> Any:
        at = Place(path)
        return next(kind for kind in self.kinds if kind.takes(value, at)).write(value, path)

    def noun(self, json: bool) -> str:
        return " or ".join(kind.words(json) for kind in self.kinds)

    def hint(self, value: Any) -> str:
        return next((hint for kind in self.kinds if (hint := kind.hint(value))), "")
