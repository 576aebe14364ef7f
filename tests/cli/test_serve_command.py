"""`statewise serve`: what it refuses before it listens. tests/serve has what it answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from served_models import TOKENIZER, build

import statewise as sw


@pytest.fixture
def small(tmp_path: Path) -> Path:
    sw.save(build(), tmp_path / "small", tokenizer=TOKENIZER)
    return tmp_path / "small"


def test_what_is_wrong_is_one_line(refused: Callable[..., str], small: Path, tmp_path: Path) -> None:
    assert "api_key" in refused("serve", small, "--host", "0.0.0.0")
    assert "rows" in refused("serve", small, "--rows", 0)
    assert "--state-memory" in refused("serve", small, "--state-memory", -1)
    assert "none" in refused("serve", tmp_path / "none")
    assert "weights" in refused("serve", small, "--weights", "int3")
    (tmp_path / "file").write_text("x")
    assert "--state-folder" in refused("serve", small, "--port", 0, "--state-folder", tmp_path / "file")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen" in refused("serve", small, "--port", taken.getsockname()[1])
