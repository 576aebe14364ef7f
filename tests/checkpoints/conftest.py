"""What tests of checkpoints share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_examples import (
    TRAINER_DATA,
    tiny_model,
    trainer_tensors,
)
from damaged import JSONTokenizer

import statewise as sw


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact") / "model"
    return sw.save(tiny_model(), folder, tokenizer=JSONTokenizer(), trainer=(trainer_tensors(), TRAINER_DATA))


@pytest.fixture(scope="session")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkpoints of hybrids lie that transformers saved."""
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(intact, tmp_path / "model"))
