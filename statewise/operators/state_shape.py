"""The tensors of a state, declared once: what a state at rest is made from, and what a given one is checked against.

A declaration is the state itself with a :class:`Leaf` instead of each tensor:
``ConvolutionState(leaf(n_taps - 1, width))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from statewise.errors import InputError

NUMBERS = (torch.float32, torch.float64)  # narrower ones would be rounded anew at every step


@dataclass(frozen=True)
class Leaf:
    """One tensor of a state.

    shape: behind the batch; None for an axis of any size, which is 0 at rest
    dtype: torch.int64 for a count; None for numbers, which are in the state's floating-point dtype
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype | None = None


def leaf(*shape: int | None, dtype: torch.dtype | None = None) -> Any:
    """A :class:`Leaf` where a state has its tensor; the type checker takes it for one."""
    return Leaf(shape, dtype)


COUNT = leaf(dtype=torch.int64)  # of each row


class StandIn:
    """Replaces a state, or a part of one, for one call: it is responsible for itself, and is not checked."""


def at_rest(shape: Any, batch: int, *, device: torch.device | str | None, dtype: torch.dtype) -> Any:
    """Zeros of this shape; ``dtype`` is that of the numbers."""
    if isinstance(shape, Leaf):
        sizes = [0 if n is None else n for n in shape.shape]
        return torch.zeros(batch, *sizes, device=device, dtype=dtype if shape.dtype is None else shape.dtype)
    return type(shape)(*[at_rest(part, batch, device=device, dtype=dtype) for part in shape])


def check_state(reader: str, state: Any, shape: Any, batch: int, device: torch.device, place: str = "state") -> None:
    """Whether a state is as declared, for a batch of this many rows.

    place:   what the state, or the part of one, is called in a message
    Errors:  InputError that names ``reader``, and the part of the state that does not fit.
    """
    if type(shape) is Leaf:
        if not _fits(state, shape, batch, device):
            _refuse(reader, state, shape, batch, device, place)
        return
    if type(state) is not type(shape):
        if isinstance(state, StandIn):
            return
        raise InputError(
            f"{reader} needs {place} of type {type(shape).__name__}, got {type(state).__name__}; "
            "begin with initial_state(batch)"
        )
    for name, have, want in zip(shape._fields, state, shape):
        if type(want) is not Leaf or not _fits(have, want, batch, device):
            check_state(reader, have, want, batch, device, f"{place}.{name}")


def _fits(have: Any, want: Leaf, batch: int, device: torch.device) -> bool:
    """Few calls: a step of one token asks it for every tensor of the state."""
    if not isinstance(have, Tensor) or have.device != device or have.layout is not torch.strided:
        return False
    if have.dtype not in NUMBERS if want.dtype is None else have.dtype is not want.dtype:
        return False
    given: tuple[int | None, ...] = have.shape
    if None in want.shape and have.ndim == 1 + len(want.shape):
        given = (given[0], *[None if n is None else m for n, m in zip(want.shape, given[1:])])
    return given == (batch, *want.shape)


def _refuse(reader: str, have: Any, want: Leaf, batch: int, device: torch.device, place: str) -> NoReturn:
    if not isinstance(have, Tensor):
        raise InputError(f"{reader} needs {place} as a tensor, got {type(have).__name__}")
    free = [i for i, n in enumerate(want.shape, 1) if n is None]
    if [n for i, n in enumerate(have.shape) if i not in free] != [n for n in (batch, *want.shape) if n is not None]:
        sizes = ", ".join("any" if n is None else str(n) for n in (batch, *want.shape))
        sizes += "," * (not want.shape)
        raise InputError(f"{reader} needs {place} of shape ({sizes}), got {tuple(have.shape)}")
    if have.dtype not in NUMBERS if want.dtype is None else have.dtype != want.dtype:
        kind = " or ".join(map(str, NUMBERS)) if want.dtype is None else str(want.dtype)
        raise InputError(f"{reader} needs {place} in {kind}, got {have.dtype}")
    raise InputError(
        f"{reader} needs {place} on {device}, where its input is, and {torch.strided}; "
        f"got it on {have.device}, {have.layout}"
    )
