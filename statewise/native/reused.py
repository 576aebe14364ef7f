"""Large blocks of memory, used again when what lay in them is gone.

Each call of a kernel on a long sequence would otherwise get fresh pages, which the system has to clear. In a scan with
gradients at 131,072 steps that was half of the system's time: on Zen 4, 1.4 of 23 microseconds a step. Here a freed
block is kept, and lent again to what fits it. The system may take the pages of a kept block when memory is short
(MADV_FREE), so they count as free memory.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

LARGE = 2**25  # bytes: below it the allocator of the C library keeps what is freed, above it never does
_HUGE_PAGE = 2**21
_ROOM = 1.25  # a block is lent to what needs no less than this part of it

_kept: deque[mmap.mmap] = deque()  # the last one freed at the right; changed by single calls alone, so needs no lock
_lent: dict[int, int] = {}  # bytes of the blocks that are lent
_most = 0  # the most that were lent at once: no more than that is kept


def possible() -> bool:
    """Whether the system knows how to keep memory and to take it when it is short."""
    return sys.platform.startswith("linux") and hasattr(mmap, "MADV_FREE") and hasattr(mmap, "MADV_HUGEPAGE")


def lent(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU, its values whatever they are, of LARGE bytes or more."""
    global _most
    n_bytes = dtype.itemsize * math.prod(shape)
    try:
        block = _taken(n_bytes) or _fresh(n_bytes)
    except OSError:  # no room: whoever asks is told so by PyTorch, as for any tensor, if none is left now either
        let_go()
        return torch.empty(shape, dtype=dtype)
    loan = _loan(len(block)).from_buffer(block)
    loan.block = block
    _lent[id(block)] = len(block)
    _most = max(_most, sum([*_lent.values()]))
    first = -ctypes.addressof(loan) % _HUGE_PAGE
    flat = torch.frombuffer(loan, dtype=dtype, count=n_bytes // dtype.itemsize, offset=first)
    whole, strides = torch.empty(0, dtype=dtype), torch.empty(tuple(shape), device="meta").stride()
    return whole.set_(flat.untyped_storage(), flat.storage_offset(), tuple(shape), strides)  # no view of another tensor


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of rows that follow each other."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def kept_bytes() -> int:
    return sum(len(block) for block in [*_kept])


def let_go() -> None:
    """Gives all kept blocks back to the system."""
    _kept.clear()


def _fresh(n_bytes: int) -> mmap.mmap:
    block = mmap.mmap(-1, n_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system built without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _taken(n_bytes: int) -> mmap.mmap | None:
    """The smallest kept block that fits, and is not far too large; of several the one freed last."""
    needed = n_bytes + _HUGE_PAGE
    while fitting := [block for block in reversed([*_kept]) if needed <= len(block) <= _ROOM * needed]:
        block = min(fitting, key=len)
        try:
            _kept.remove(block)
        except (ValueError, IndexError):  # another thread was faster
            continue
        return block
    return None


@functools.lru_cache(maxsize=64)
def _loan(n_bytes: int) -> Any:
    """What PyTorch holds as long as a tensor lies in the block."""
    return type("Loan", (ctypes.c_char * n_bytes,), {"__del__": _give_back})


def _give_back(loan: Any) -> None:
    block = getattr(loan, "block", None)
    if block is None or sys.is_finalizing():
        return
    _lent.pop(id(block), None)
    try:
        block.madvise(mmap.MADV_FREE)
    except OSError:  # the system could not take it back
        return
    _kept.append(block)
    while kept_bytes() > _most:
        try:
            _kept.popleft()
        except IndexError:
            return
