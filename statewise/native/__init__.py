"""The C kernels' shared library: finds it, loads it, and gets functions for this processor's instruction set.

Plain C behind ctypes: no Python or PyTorch headers, so one binary serves every version of both. Without it
(see :func:`why_not`) everything works through PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from statewise.errors import ConfigError, InputError
from statewise.native import build
from statewise.native.threads import entry_points

INSTRUCTION_SETS = ("portable", "avx2", "avx512")  # in the order of what statewise_cpu_level counts
_HERE = Path(__file__).resolve().parent
_PRECISIONS = {torch.float32: "_f32", torch.float64: "_f64", None: ""}
_ARGUMENTS = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "d": ctypes.c_double}

_forced: str | None = None
_rehearsing = False


def available() -> bool:
    """Whether the library can be found and loaded."""
    return _load()[0] is not None


def why_not() -> str | None:
    """Why the library is missing, in one line; None if it is there."""
    why, wanted = _load()[1], os.environ.get("STATEWISE_ISA")
    return f"{why}; STATEWISE_ISA={wanted} has no effect without them" if why and wanted else why


def library_path() -> Path:
    """The library's path: from the variable STATEWISE_LIBRARY, or beside this file."""
    return Path(os.environ.get("STATEWISE_LIBRARY") or _HERE / "_kernels.so")


def instruction_sets() -> tuple[str, ...]:
    """Those that the library holds and this processor has, the best last; empty without a library."""
    library = _load()[0]
    if library is None:
        return ()
    has = INSTRUCTION_SETS[: library.statewise_cpu_level() + 1]
    return tuple(name for name in has if hasattr(library, f"statewise_built_{name}"))


def instruction_set() -> str:
    """The one in use: the best one here, or what the variable STATEWISE_ISA or :func:`forced` asks for.

    Errors:  InputError if that one is not available here.
    """
    return _forced or _chosen()


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Inside it, kernels run in the code for that instruction set: to test one that is not this processor's best."""
    global _forced
    if name not in instruction_sets():
        raise InputError(
            f"instruction set {name!r} is not available here; available: {', '.join(instruction_sets()) or 'none'}"
        )
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


@contextmanager
def rehearsed() -> Iterator[None]:
    """Inside it, a call with a tensor without memory (PyTorch's FakeTensor) does nothing, since there is nothing to
    write to. So you can count everything around the calls, such as their scratch memory.
    """
    global _rehearsing
    before, _rehearsing = _rehearsing, True
    try:
        yield
    finally:
        _rehearsing = before


def n_threads() -> int:
    """How many threads a kernel may use: as many as PyTorch."""
    return torch.get_num_threads()


def function(name: str, dtype: torch.dtype | None, arguments: str) -> Callable[..., Any]:
    """The library's function ``name`` in a precision (None: it has only one), for this processor.

    ``arguments`` has a letter for each: "p" a tensor (its memory; contiguous, on the CPU) or None, "l" an integer, "d"
    a float.
    """
    call = _function(name, dtype, arguments, instruction_set())
    return _unless_fake(call) if _rehearsing else call


def _unless_fake(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*values: Any) -> None:
        if not any(hasattr(value, "fake_mode") for value in values):
            call(*values)

    return run


@functools.cache
def _function(name: str, dtype: torch.dtype | None, arguments: str, instructions: str) -> Callable[..., Any]:
    library = _load()[0]
    assert library is not None, "ask available() first"
    call = getattr(library, f"{name}{_PRECISIONS[dtype]}_{instructions}")
    call.argtypes = [_ARGUMENTS[letter] for letter in arguments]
    call.restype = None
    pointers = tuple(i for i, letter in enumerate(arguments) if letter == "p")

    def run(*values: Any) -> None:
        prepared = list(values)
        for i in pointers:
            value = prepared[i]
            prepared[i] = value.data_ptr() if isinstance(value, torch.Tensor) else value
        call(*prepared)

    return run


@functools.cache
def _chosen() -> str:
    wanted = os.environ.get("STATEWISE_ISA")
    here = instruction_sets()
    if wanted and wanted not in here:
        raise ConfigError(f"STATEWISE_ISA={wanted!r} is not available here; available: {', '.join(here) or 'none'}")
    return wanted or here[-1]


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    path = library_path()
    given = os.environ.get("STATEWISE_LIBRARY")
    if given and not path.is_file():
        return None, f"STATEWISE_LIBRARY={given} is not a file; name the library with its path, or unset the variable"
    if not path.exists():
        reason = path.with_suffix(".txt")
        why = reason.read_text().strip() if reason.exists() else "statewise was installed without building them"
        return None, why
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{f'STATEWISE_LIBRARY={given}' if given else path.name} does not load: {error}"
    if not given and build.SOURCE.is_dir():
        built_from = bytes((ctypes.c_char * 16).in_dll(library, "statewise_sources")).decode()
        if built_from != build.sources_digest():
            return None, f"{path.name} was built from different sources; run: python {build.__file__}"
    library.statewise_cpu_level.restype = ctypes.c_int
    library.statewise_set_threads.argtypes = [ctypes.c_void_p] * 3
    library.statewise_set_threads(*entry_points())
    return library, None
