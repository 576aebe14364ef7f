"""Sequence parallelism on 2 and 4 processes: one spawn for all cases of a world size, a test for each case."""

from __future__ import annotations

import multiprocessing
import traceback
from datetime import timedelta
from typing import Any

import distributed_cases_sequence
import pytest
import torch
import torch.distributed as dist


def run_cases(rank: int, size: int, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    for name, case in distributed_cases_sequence.CASES.items():
        try:
            case()
            dist.barrier()
        except BaseException:
            results.put((name, rank, traceback.format_exc()))
            break
        results.put((name, rank, None))
    results.put((None, rank, None))


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | None]]:
    size = request.param
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distributed_cases_sequence"])
    results = context.Queue()
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    ranks = [context.Process(target=run_cases, args=(rank, size, store, results)) for rank in range(size)]
    for process in ranks:
        process.start()
    found: dict[str, list[str | None]] = {}
    left = size
    while left:
        name, rank, problem = results.get(timeout=120)
        if name is None:
            left -= 1
        else:
            found.setdefault(name, []).append(problem and f"rank {rank}: {problem}")
    for process in ranks:
        process.join()
    return found


@pytest.mark.parametrize("case", list(distributed_cases_sequence.CASES))
def test_distributed_sequence(outcomes: dict[str, list[str | None]], case: str) -> None:
    assert case in outcomes, "not reached: a case before it failed"
    problems = [problem for problem in outcomes[case] if problem]
    assert not problems, "\n".join(problems)
