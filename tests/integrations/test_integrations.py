"""What the integrations say where the library is missing that they need."""

from __future__ import annotations

import importlib
import sys

import pytest

import statewise as sw


@pytest.mark.parametrize(("module", "package", "extra"), [("transformers", "transformers", "hf")])
def test_a_missing_library_is_one_line(module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"statewise.integrations.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(sw.InputError, match=rf'is not installed; pip install "statewise\[{extra}\]"'):
        importlib.import_module(name)
