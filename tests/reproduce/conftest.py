"""What tests of reproductions share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from h3_language_texts import WORDS


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words in a random order, in one file."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    order = torch.randint(len(WORDS), (6000,), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [" ".join(WORDS[i] for i in order[k : k + 10]) + ".\n" for k in range(0, len(order), 10)]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
