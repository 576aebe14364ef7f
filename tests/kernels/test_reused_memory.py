"""Large outputs of kernels lie in memory that was used before, and in nobody else's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from statewise.native import memory, reused

pytestmark = pytest.mark.skipif(not reused.possible(), reason="the system has no memory that it may take back")
N = reused.LARGE // 4  # float32 numbers of the smallest large block


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    reused.let_go()
    yield
    gc.collect()
    reused.let_go()


def test_freed_memory_is_lent_again() -> None:
    x = memory.empty(N, dtype=torch.float32)
    place = x.data_ptr()
    assert place % 2**21 == 0
    del x
    assert reused.kept_bytes() >= 4 * N
    y = memory.empty(2, N // 2, dtype=torch.float32)
    assert y.data_ptr() == place
    assert y.is_contiguous()
    assert not y._is_view()
    assert reused.kept_bytes() == 0
    z = memory.empty(N, dtype=torch.float32)
    assert z.data_ptr() != place


def test_a_view_keeps_its_memory() -> None:
    x = memory.empty(4, N, dtype=torch.float32)
    part = x[1:2]
    part.fill_(3.0)
    del x
    other = memory.empty(4, N, dtype=torch.float32).fill_(5.0)
    assert (part == 3).all()
    assert (other == 5).all()
    assert reused.kept_bytes() == 0


def test_a_block_is_not_lent_for_much_less() -> None:
    x = memory.empty(2 * N, dtype=torch.float32)
    place = x.data_ptr()
    del x
    small = memory.empty(N, dtype=torch.float32)
    assert small.data_ptr() != place
    nearly = memory.empty(2 * N - N // 4, dtype=torch.float32)
    assert nearly.data_ptr() == place


def test_no_more_is_kept_than_was_in_use() -> None:
    before = reused._most
    first = [memory.empty(N, dtype=torch.float32) for _ in range(3)]
    del first
    for k in range(2, 8):  # of sizes that do not fit each other
        memory.empty(N * k, dtype=torch.float32)
    assert reused.kept_bytes() <= max(before, reused._most)
    assert reused.kept_bytes() <= max(before, 4 * N * 7 + 2**21, 3 * (4 * N + 2**21))


def test_threads_never_share_a_block() -> None:
    def work(number: int) -> bool:
        held = True
        for _ in range(20):
            x = memory.empty(N, dtype=torch.float32)
            x[:: N // 64] = number
            held = held and bool((x[:: N // 64] == number).all())
            del x
        return held

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_small_tensors_and_tensors_without_memory_are_as_they_were() -> None:
    assert memory.empty(10, dtype=torch.float32).shape == (10,)
    with FakeTensorMode():
        assert type(memory.empty(N, dtype=torch.float32)) is not torch.Tensor
    assert reused.kept_bytes() == 0


def test_what_lies_in_it_is_an_ordinary_tensor() -> None:
    x = memory.empty(N, dtype=torch.float32).fill_(1.0).requires_grad_()
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad[0] == 2
    copy = x.detach().share_memory_()
    assert copy.is_shared()
    assert copy[-1] == 1


def test_where_there_is_no_room_pytorch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(n_bytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(reused, "_fresh", refused)
    assert memory.empty(N, dtype=torch.float32).shape == (N,)
    with pytest.raises(RuntimeError, match="allocate"):
        memory.empty(2**58, dtype=torch.float32)
