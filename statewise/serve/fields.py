"""The fields of a request's JSON, each taken once; what is left over is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from statewise.configuration.words import shown, suggest, type_name
from statewise.errors import excerpt
from statewise.serve.errors import RequestError

# Fields that change no answer
WITHOUT_EFFECT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
)


class Fields:
    """An object of JSON. null stands for a field that is not there, as clients send it.

    >>> fields = Fields({"n": 2, "stram": True})
    >>> fields.integer("n", 1, 128)
    2
    >>> fields.flag("stream"), fields.done()
    Traceback (most recent call last):
    statewise.serve.errors.RequestError: there is no field 'stram' here; did you mean 'stream'? Fields: n, stream
    """

    def __init__(self, data: Any, *, where: str = "the body") -> None:
        if not isinstance(data, dict):
            raise RequestError(f"{where} is {_a(data)}; expected a JSON object")
        self._data = data
        self._taken: list[str] = []

    def take(self, name: str) -> Any:
        """The value, or None."""
        self._taken.append(name)
        return self._data.get(name)

    def done(self) -> None:
        """Errors: RequestError for a field that nobody has taken."""
        for name in self._data:
            if name not in self._taken and name not in WITHOUT_EFFECT:
                told = suggest(name, sorted(self._taken), "Fields")
                raise RequestError(f"there is no field {excerpt(name)} here; {told}", param=name, code="unknown_field")

    def refuse(self, name: str, allowed: Sequence[Any], why: str) -> None:
        """Errors: RequestError for a value that would have to change the answer, and does not."""
        value = self.take(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise self.wrong(name, value, why)

    def text(self, name: str) -> str | None:
        return self._of(name, lambda value: isinstance(value, str), "a string")

    def flag(self, name: str) -> bool:
        return bool(self._of(name, lambda value: isinstance(value, bool), "true or false"))

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self._of(name, lambda value: type(value) is int, "an integer")
        if value is not None and not least <= value <= most:
            shown_most = "2**63 - 1" if most == 2**63 - 1 else f"{most:,}"
            raise RequestError(
                f"{name}={shown(value)} is out of range; use an integer from {least} to {shown_most}", param=name
            )
        return value

    def number(self, name: str) -> float | None:
        """A finite one; its range is for whoever uses it."""
        value = self._of(name, lambda value: type(value) in (int, float), "a number")
        try:
            value = None if value is None else float(value)
        except OverflowError:
            value = math.inf
        if value is not None and not math.isfinite(value):
            raise RequestError(f"{name} is too large; use a smaller number", param=name)
        return value

    def wrong(self, name: str, value: Any, expected: str) -> RequestError:
        return RequestError(f"{name}={excerpt(value)} ({type_name(value)}) cannot be used; {expected}", param=name)

    def _of(self, name: str, fits: Callable[[Any], bool], expected: str) -> Any:
        value = self.take(name)
        if value is not None and not fits(value):
            raise self.wrong(name, value, f"expected {expected}")
        return value


def _a(data: Any) -> str:
    return "a list" if isinstance(data, list) else f"a {type_name(data)}" if data is not None else "null"
