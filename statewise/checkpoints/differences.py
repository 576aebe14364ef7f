"""The fields in which two models differ."""

from __future__ import annotations

from typing import Any

from statewise.configuration import to_dict
from statewise.models.base import ModelConfig

ABOUT_DATA = ("input", "text", "classes")


def differences(before: ModelConfig, now: ModelConfig) -> list[str]:
    """The fields in which two configs differ, as ``layers.0.mixer.d_state is 64 there and 128 here``.

    A bare mixer config is the same as a block without an MLP. What only one of them says about its raw data
    does not count: a model of 0.1.0 says nothing about it.
    """
    if type(before) is not type(now):
        return [f"a {type(before).__name__} there and a {type(now).__name__} here"]
    old, new = (to_dict(config.in_full()) for config in (before, now))
    for name in ABOUT_DATA:
        if not (old.get(name) and new.get(name)):
            old.pop(name, None)
            new.pop(name, None)
    return _differences(old, new, "")


def _differences(old: Any, new: Any, path: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old.get("type") == new.get("type"):
        keys = [*old, *(key for key in new if key not in old)]
        return [x for key in keys for x in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [x for i, pair in enumerate(zip(old, new)) for x in _differences(*pair, f"{path}.{i}")]
    return [] if old == new else [f"{path} is {_short(old)} there and {_short(new)} here"]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("type", "an object"))
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)
