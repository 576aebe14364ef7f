"""Why another process is gone, where one process group has several runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from statewise.errors import DivergedError, TrainingError
from statewise.training.distributed.launch import join


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run(error: Exception) -> None:
    with join():
        raise error


def test_the_reason_of_a_run_is_no_reason_of_the_next(alone: None) -> None:
    with pytest.raises(DivergedError, match="the loss is nan"):
        run(DivergedError("step 3: the loss is nan"))
    with pytest.raises(TrainingError, match=r"another process of the run has ended .*timed out") as found:
        run(RuntimeError("gloo: timed out"))
    assert type(found.value) is TrainingError
