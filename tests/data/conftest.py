"""What tests of data share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty small documents, some ill-formed."""
    root = tmp_path / "texts"
    root.mkdir()
    for i in range(30):
        (root / f"{i:02}.txt").write_bytes(f"document {i}\n".encode() * (i + 1) + b"\xe9\n")
    return root
