"""What the integrations say where the library is missing that they need."""

from __future__ import annotations

import importlib
import subprocess
import sys
from textwrap import dedent

import pytest

import statewise as sw


@pytest.mark.parametrize(
    ("module", "package", "extra"), [("transformers", "transformers", "hf"), ("sklearn", "sklearn", "estimators")]
)
def test_a_missing_library_is_one_line(module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"statewise.integrations.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(sw.InputError, match=rf'is not installed; pip install "statewise\[{extra}\]"'):
        importlib.import_module(name)


def test_without_scikit_learn_its_estimators_are_not_listed() -> None:
    """So that `from statewise import *` and help() work; who asks for one by name is told what to install."""
    code = """
        import importlib.util, sys
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "sklearn" else found(name, *rest)
        sys.modules["sklearn"] = None
        from statewise import *
        import statewise
        assert "StatewiseClassifier" not in dir(statewise)
        try:
            statewise.StatewiseClassifier
        except InputError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False)
    assert 'sklearn, which is not installed; pip install "statewise[estimators]"' in done.stdout, done.stderr
