"""Several processes train as one does: the cases of distributed_cases_*.py, which run in one set of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distributed_harness import load_cases, outcome_of, run_program

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not hasattr(__import__("os"), "fork"), reason="needs gloo and fork"
)
ALL = [(world, name) for name, (_, worlds) in load_cases().items() for world in worlds]


@pytest.fixture(scope="session")
def distributed_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What the cases left, which ran when the first test asked for them; one folder for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "distributed"
    run_program(folder)
    return folder


@pytest.mark.parametrize(("world", "name"), ALL, ids=[f"{name}-on-{world}" for world, name in ALL])
def test_distributed(distributed_folder: Path, world: int, name: str) -> None:
    outcome = outcome_of(distributed_folder, world, name)
    assert outcome.failure is None, f"{outcome.failure}\n{(distributed_folder / 'done').read_text()[-4000:]}"
