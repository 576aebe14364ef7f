"""What a call has put into its states: noted where it happens, so that the states of earlier steps can be made again.

Whatever changes a state notes how: a recurrence with its coefficients and inputs, a history with its keys and values.
These are small beside the state, and to go through them again needs none of the projections that made them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from statewise.operators.masks import Masks

Replay = Callable[[Any, int, Masks], Any]  # (the state before, steps, their masks) -> the state behind them


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer: its input (batch, length, d_model), and for each part of its state the part that came out
    and how to make it again."""

    layer: Any
    x: Tensor
    parts: list[tuple[Any, Replay]] = field(default_factory=list)


class Recording:
    """The calls of a thread's layers, in their order."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self._open = False

    @contextmanager
    def call(self, layer: Any, x: Tensor) -> Iterator[None]:
        """Notes within belong to this layer; a layer within a layer is a part of it."""
        if self._open:
            yield
            return
        self.calls.append(LayerCall(layer, x))
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def note(self, after: Any, replay: Replay) -> None:
        if self._open:
            self.calls[-1].parts.append((after, replay))


_of_threads: dict[int, Recording] = {}


def recording() -> Recording | None:
    """The one that is going on in this thread."""
    return _of_threads.get(threading.get_ident()) if _of_threads else None


@contextmanager
def recorded() -> Iterator[Recording]:
    """Notes the calls within."""
    thread = threading.get_ident()
    before, made = _of_threads.get(thread), Recording()
    _of_threads[thread] = made
    try:
        yield made
    finally:
        if before is None:
            del _of_threads[thread]
        else:
            _of_threads[thread] = before
