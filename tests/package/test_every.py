"""`--every N` runs a part of each test's cases: at least one, and together with all of them each once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest


def kept(conftest: Any, n: int, names: list[str]) -> list[str]:
    dropped: list[Any] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: dropped.extend(items)))
    items = [SimpleNamespace(nodeid=name) for name in names]
    conftest._keep_every(n, config, items)
    assert len(items) + len(dropped) == len(names)
    return [item.nodeid for item in items]


def test_every(pytestconfig: pytest.Config) -> None:
    plugins = pytestconfig.pluginmanager.get_plugins()
    conftest = next(plugin for plugin in plugins if hasattr(plugin, "_keep_every"))
    names = [f"test_a.py::test_{k}[{i}]" for k in range(9) for i in range(k)] + ["test_a.py::test_alone"]
    assert kept(conftest, 1, names) == names
    found = kept(conftest, 3, names)
    for k in range(1, 9):
        each = [name for name in found if name.startswith(f"test_a.py::test_{k}[")]
        first = crc32(f"test_a.py::test_{k}".encode()) % min(3, k)
        assert each == [f"test_a.py::test_{k}[{i}]" for i in range(first, k, 3)]
        assert each
    assert "test_a.py::test_alone" in found
