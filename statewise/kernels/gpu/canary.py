"""The online canary: a kernel checks itself before its first use on a device, and the answer is kept.

A new card or a new Triton may silently corrupt results. So the first time that a kernel is to run on a device it
computes small cases, forwards and backwards, and so does the PyTorch path. Only if the two agree does it run. The
answer is kept in a file, for this card, these versions and these sources.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.gpu.sources import digest, sources
from statewise.precision import products_at, without_autocast

# of the largest number: what two right answers may differ by
FULL, TOLERANCE = 2e-4, {torch.bfloat16: 3e-2, torch.float16: 4e-3}
FILE = "triton-canary.json"
_known: dict[str, str | None] = {}


def verdict(kernel: str, device: torch.device) -> str | None:
    """Why a Triton kernel is not to be trusted on a device; None if its answers are those of PyTorch."""
    key = _key(kernel, device)
    if key not in _known:
        kept = _read()
        if key in kept:
            _known[key] = kept[key]
        elif device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "it has not been checked on this device, and a CUDA graph is being captured; call it once before"
        else:
            _known[key] = check(kernel, device)
            _write(key, _known[key])
    return _known[key]


def remembered(kernel: str, device: torch.device) -> tuple[bool, str | None]:
    """Whether an answer of :func:`verdict` is kept, and the answer; nothing is computed."""
    key = _key(kernel, device)
    kept = {**_read(), **_known}
    return key in kept, kept.get(key)


def check(kernel: str, device: torch.device) -> str | None:
    """:func:`verdict` without what is kept, whatever autocast and the precision of products are here."""
    with without_autocast(device), products_at("highest"):
        return _check(kernel, device)


def _check(kernel: str, device: torch.device) -> str | None:
    module = gpu.module(kernel)
    trial = getattr(module, "trial", _trial)
    room = f"statewise.kernels.{kernel}.pytorch"
    pytorch = importlib.import_module(room) if importlib.util.find_spec(room) else None
    try:
        for i, sample in enumerate(module.samples(device)):
            tolerance = max(TOLERANCE.get(m.dtype, FULL) for m in _tensors(sample))
            found, again = trial(module, *sample), trial(module, *sample)
            for j, (got, want) in enumerate(zip(found, trial(pytorch, *sample), strict=True)):
                error = _difference(got, want)
                if not error <= tolerance:
                    return f"its result {j} of case {i} is off by {error:.1e}, and {tolerance:.0e} may be rounding"
                if not torch.equal(got, again[j]):  # no number is NaN here
                    return f"its result {j} of case {i} is another one when it is computed again"
    except Exception as error:  # whatever Triton, its compiler or the driver raise
        return f"it fails with {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def _trial(path: Any, *sample: Any) -> list[Tensor]:
    """The outputs of a path, and its gradients for a fixed slope."""
    found = path.forward(*sample)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    grads = path.backward(*(slope_of(m) for m in outputs), *sample)
    return [m for m in (*outputs, *grads) if m is not None]


def slope_of(m: Tensor) -> Tensor:
    """Fixed numbers of a tensor's shape and dtype."""
    numbers = torch.arange(m.numel(), device=m.device).to(torch.float32).sin().view(m.shape)
    return numbers.to(m.dtype)


def _difference(got: Tensor, want: Tensor) -> float:
    """The largest, as a share of the largest number; infinite for another shape."""
    if got.shape != want.shape:
        return math.inf
    if not want.numel():
        return 0.0
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    return float((got - want).abs().max() / want.abs().max().clamp(min=1e-6))


def _tensors(sample: Any) -> Iterator[Tensor]:
    for part in sample:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, tuple):
            yield from _tensors(part)


def _key(kernel: str, device: torch.device) -> str:
    """The card, the versions, and the sources of the kernel."""
    import triton

    card = "cpu"
    if device.type == "cuda":
        card = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{kernel} {_sources(kernel)} on {card}, triton {triton.__version__}, torch {torch.__version__}"


@functools.cache
def _sources(kernel: str) -> str:
    """A digest of what computes, and of what it is held against. Asked for with each call of a kernel."""
    return digest([*sources(kernel), *Path(__file__).parents[1].glob(f"{kernel}/pytorch.py")])


def _path() -> Path:
    if chosen := os.environ.get("STATEWISE_CACHE"):
        return Path(chosen) / FILE
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statewise" / FILE


def _read() -> dict[str, str | None]:
    try:
        found = json.loads(_path().read_text("utf-8"))
    except (OSError, RuntimeError, ValueError):  # not there, no home, or not whole: it is checked again
        return {}
    return found if isinstance(found, dict) else {}


def _write(key: str, answer: str | None) -> None:
    """Kept where that is possible; else the next process checks again."""
    try:
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(json.dumps({**_read(), key: answer}, indent=1) + "\n", "utf-8")
        whole.replace(path)
    except (OSError, RuntimeError):
        return
