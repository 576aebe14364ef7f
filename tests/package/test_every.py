"""`--every N` runs a part of each test's cases: at least one of those that run here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def kept(conftest: Any, n: int, cases: dict[str, str | None]) -> list[str]:
    """Of cases by their name, with what they are marked with."""
    dropped: list[Any] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: dropped.extend(items)))
    items = [
        SimpleNamespace(nodeid=name, get_closest_marker=lambda asked, mark=mark: mark == asked)
        for name, mark in cases.items()
    ]
    conftest._keep_every(n, config, items)
    assert len(items) + len(dropped) == len(cases)
    return [item.nodeid for item in items]


def test_every(pytestconfig: pytest.Config) -> None:
    conftest = next(plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "_keep_every"))
    parameters = [f"{size}-{dtype}" for size in range(30) for dtype in ("full", "half", "wide")]
    cases: dict[str, str | None] = {f"test_a.py::test_b[{name}]": None for name in parameters}
    found = kept(conftest, 3, cases)
    assert 20 <= len(found) <= 40
    assert all(any(name.endswith(f"{dtype}]") for name in found) for dtype in ("full", "half", "wide"))
    alone: dict[str, str | None] = {f"test_a.py::test_{k}[x]": None for k in range(20)}
    assert kept(conftest, 3, alone) == list(alone)
    mixed: dict[str, str | None] = {f"test_a.py::test_{k}[{mark}]": mark for k in range(9) for mark in ("slow", None)}
    assert {name for name in kept(conftest, 100, mixed) if "None" in name} == {name for name in mixed if "None" in name}
