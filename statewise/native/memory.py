"""Memory for large outputs, in huge pages where the system has them on request."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.native import reused

_LARGE = 2**22  # bytes: two huge pages


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """torch.empty on the CPU, for what a kernel writes."""
    return room_for(torch.empty(shape, dtype=dtype))


def room_for(fresh: Tensor) -> Tensor:
    """The same tensor, whose memory nobody has written yet: if it is large and on the CPU, in memory that was used
    before (:mod:`statewise.native.reused`), or in huge pages.

    Fresh memory costs a page fault for every 4 KiB that is first written. For what a fast kernel writes that is most
    of its time: 15 ms for 32 MiB where the values take 2.
    """
    if _has_memory(fresh) and fresh.nbytes >= reused.LARGE and reused.possible():
        return reused.lent(fresh.shape, fresh.dtype)
    return in_huge_pages(fresh)


def in_huge_pages(fresh: Tensor) -> Tensor:
    """The same tensor, whose memory nobody has written yet, having asked for huge pages if it is large and on the CPU.

    They also spare what reads gigabytes, such as the weights of a model, most of the lookups of addresses.
    """
    return _advised(fresh, "MADV_HUGEPAGE")


def in_small_pages(fresh: Tensor) -> Tensor:
    """The same, having asked for no huge pages, also where the system gives them unasked."""
    return _advised(fresh, "MADV_NOHUGEPAGE")


def gives_huge_pages() -> bool:
    """Whether the system gives huge pages on request."""
    try:
        return (
            _advise() is not None and "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        )
    except OSError:
        return False


def _has_memory(fresh: Tensor) -> bool:
    return fresh.device.type == "cpu" and type(fresh) is Tensor  # not so a FakeTensor


def _advised(fresh: Tensor, advice: str) -> Tensor:
    advise = _advise() if _has_memory(fresh) and fresh.nbytes >= _LARGE else None
    if advise is not None:
        first = -(-fresh.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        n_bytes = (fresh.data_ptr() + fresh.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(first, n_bytes, getattr(mmap, advice))
    return fresh


@functools.cache
def _advise() -> Callable[..., Any] | None:
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
