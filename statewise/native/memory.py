"""Memory for large outputs, in huge pages where the system has them on request."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LARGE = 2**22  # bytes: two huge pages


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """torch.empty on the CPU, where a large block asks Linux for huge pages (madvise).

    Fresh memory costs a page fault for every 4 KiB that is first written. For what a fast kernel writes that is most
    of its time: 15 ms for 32 MiB where the values take 2.
    """
    out = torch.empty(shape, dtype=dtype)
    advise = _advise() if out.nbytes >= _LARGE else None
    if advise is not None:
        first = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(first, (out.data_ptr() + out.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    return out


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
