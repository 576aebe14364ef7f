"""What tests of training share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statewise import cli


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command line, in a folder of the test's own: what it prints, or where it ends with ``code`` its one line."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object, code: int = 0) -> str:
        capfd.readouterr()
        assert cli.run([str(word) for word in words]) == code
        out, err = capfd.readouterr()
        if code:
            assert (out, err.count("\n")) == ("", 1)
        return out if code == 0 else err

    return call
