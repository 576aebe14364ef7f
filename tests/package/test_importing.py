"""Errors as one line."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from statewise.errors import DataError, InputError, importing, package_folder


class TestImporting:
    def test_a_package_that_is_not_there(self) -> None:
        with (
            pytest.raises(InputError, match=r'needs nosuch, which is not installed; pip install "statewise\[x\]"$'),
            importing("nosuch", "x", "a plot needs"),
        ):
            importlib.import_module("nosuch")

    def test_a_file_of_ones_own_with_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "hidden_package.py").write_text("from elsewhere import nothing\n", "utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        expected = f"but {tmp_path / 'hidden_package.py'} is imported instead; rename that file"
        with (
            pytest.raises(DataError, match=re.escape(expected)),
            importing("hidden_package", "x", "it needs", DataError),
        ):
            importlib.import_module("hidden_package")

    def test_a_package_that_fails(self) -> None:
        with pytest.raises(InputError, match="json, which cannot be imported here"), importing("json", "x", "it needs"):
            from json import nothing_of_this_name  # noqa: F401


class TestPackageFolder:
    def test_a_package_is_found_and_not_imported(self) -> None:
        assert (package_folder("unittest", "x", "it needs") / "mock.py").is_file()
        with pytest.raises(DataError, match=r"it needs nosuch, which is not installed; build it$"):
            package_folder("nosuch", "x", "it needs", DataError, remedy="build it")

    @pytest.mark.parametrize("name", ["hidden_package.py", "hidden_package/__init__.py"])
    def test_a_file_of_ones_own_with_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError\n", "utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(InputError, match=re.escape(f"but {tmp_path / name} is imported instead")):
            package_folder("hidden_package", "x", "it needs")
