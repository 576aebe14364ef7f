"""The named values of a GGUF file, read with what each has to be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from statewise.checkpoints.tensor_files import shown
from statewise.errors import CheckpointError

Value = bool | int | float | str | list[Any]


class Values:
    """The values of one architecture, each asked for by its key. idle: keys that say nothing about what is computed."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value], idle: Iterable[str]) -> None:
        self.prefix, self.metadata = f"{architecture}.", metadata
        self.asked = {f"{architecture}.{key}" for key in idle}

    def count(self, key: str, default: int | None = None) -> int:
        """default: where the key may be missing"""
        if default is not None and self.prefix + key not in self.metadata:
            return default
        found = self._of(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self.wrong(key, "expected an integer of at least 1")
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """default: where the key may be missing"""
        if default is not None and self.prefix + key not in self.metadata:
            return default
        found = self._of(key)
        if not isinstance(found, float) or not 0 < found < math.inf:
            raise self.wrong(key, "expected a number above 0")
        return found

    def flag(self, key: str, default: bool | None = False) -> bool:
        """The default if it is not there; None: it has to be."""
        if default is not None and self.prefix + key not in self.metadata:
            return default
        found = self._of(key)
        if not isinstance(found, bool):
            raise self.wrong(key, "expected true or false")
        return found

    def has(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def natural(self, key: str) -> int:
        """0 if it is not there."""
        found = self._of(key) if self.has(key) else 0
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.wrong(key, "expected an integer of at least 0")
        return found

    def each(self, key: str, n_layers: int) -> list[int]:
        """Integers of at least 0, or flags, one for each layer; one alone is that of all."""
        found = self._of(key)
        listed = found if isinstance(found, list) else [found] * n_layers
        if len(listed) < n_layers or not all(isinstance(one, int) and one >= 0 for one in listed):
            raise self.wrong(key, f"expected an integer, or one for each of {n_layers} layers")
        return [int(one) for one in listed[:n_layers]]

    def wrong(self, key: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.prefix}{key}={shown(repr(self.metadata[self.prefix + key]))}; {expected}")

    def require_no_more(self) -> None:
        """An unknown key may change what the model computes."""
        more = sorted(key for key in self.metadata if key.startswith(self.prefix) and key not in self.asked)
        if more:
            value = shown(repr(self.metadata[more[0]]))
            raise CheckpointError(f"{shown(more[0])}={value} is unknown, and may change the results")

    def _of(self, key: str) -> Value:
        self.asked.add(self.prefix + key)
        if self.prefix + key not in self.metadata:
            raise CheckpointError(f"the key {self.prefix}{key} is missing")
        return self.metadata[self.prefix + key]
