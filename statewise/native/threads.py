"""PyTorch's own OpenMP threads, for the C kernels to run on."""

from __future__ import annotations

import ctypes
import functools

import torch  # noqa: F401  (loads the runtime that is looked for here)

_NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@functools.cache
def runtime() -> str | None:
    """The file of the OpenMP runtime that PyTorch loaded into this process; None if there is none that fits."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if "omp" in line and ".so" in line}
    except OSError:
        return None
    # a process may hold several; PyTorch's own lies in its folder
    for path in sorted(paths, key=lambda path: ("/torch/" not in path, path)):
        if path.rsplit("/", 1)[-1].startswith(("libgomp", "libiomp", "libomp")) and all(_symbols(path)):
            return path
    return None


def entry_points() -> tuple[int | None, int | None, int | None]:
    """What threads.c is given; three times None where kernels can only run on one thread."""
    path = runtime()
    if path is None:
        return None, None, None
    first, second, third = _symbols(path)
    return first, second, third


def _symbols(path: str) -> list[int | None]:
    try:
        library = ctypes.CDLL(path)
        return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _NAMES]
    except (OSError, AttributeError):
        return [None]
