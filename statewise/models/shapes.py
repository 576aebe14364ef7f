"""How large a model is before any of it is there, and the refusal by number of one that there is no room for."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from statewise.errors import ConfigError, StatewiseError
from statewise.memory import SMALL, available_memory, size
from statewise.mixers.base import nothing_drawn

ModelT = TypeVar("ModelT", bound=nn.Module)
ModelT_co = TypeVar("ModelT_co", bound=nn.Module, covariant=True)
LARGEST = 1 << 62  # bytes: beyond them sizes are no 64-bit numbers any more
# What PyTorch says where it has no memory for a tensor, or no 64-bit number for its size
NO_MEMORY = re.compile(
    r"tried to allocate \S+ \w+|Storage size calculation overflowed|integer .*overflow|out of memory", re.I
)

_checked: ContextVar[bool] = ContextVar("checked", default=True)


class Buildable(Protocol[ModelT_co]):
    """What a config of a model can do."""

    def build(self) -> ModelT_co: ...


class TooLargeError(ConfigError):
    """The model is larger than what there is room for."""


class Undrawn(TorchFunctionMode):
    """Parameters are not written: memory that nobody has touched is not there yet, and their numbers come from a file.

    The meta device would do as well, but PyTorch imports its compiler for it, a second's work.
    """

    WRITES = frozenset(
        ("normal_", "uniform_", "kaiming_uniform_", "zeros_", "ones_", "zero_", "fill_", "copy_", "mul_")
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        target = args[0] if args else kwargs.get("tensor")
        if isinstance(target, nn.Parameter) and getattr(func, "__name__", "") in self.WRITES:
            return target
        return func(*args, **kwargs)


class _Counted(Undrawn):
    """Counts the bytes of the tensors that are made, from their sizes, and stops before ``room`` is exceeded."""

    MADE = frozenset(("empty", "zeros", "ones", "full", "rand", "randn"))

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.n_bytes = room, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.MADE:
            shape = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self.n_bytes += dtype.itemsize * math.prod(map(int, shape))
            if self.n_bytes > self.room:
                raise TooLargeError(
                    f"its sizes make a model of {size(self.n_bytes)} or more (with a tensor of "
                    f"{' x '.join(_number(int(n)) for n in shape)}); use smaller ones"
                )
        return super().__torch_function__(func, types, args, kwargs)


def _number(n: int) -> str:
    return f"{n:,}" if abs(n) < 10**15 else f"{n:.2e}" if abs(n) < 10**300 else "more than 1e300"


def build_shapes(config: Buildable[ModelT], room: int = LARGEST) -> ModelT:
    """The model with its shapes alone: on the meta device, where tensors have no memory.

    room:    bytes that its tensors may have
    Errors:  as ``config.build()``; TooLargeError with the bytes at which ``room`` was exceeded.
    """
    with unchecked(), nothing_drawn(), torch.random.fork_rng(devices=[]), torch.device("meta"), _Counted(room):
        return config.build()


def require_shapes(config: Buildable[ModelT], room: int = LARGEST) -> ModelT | None:
    """:func:`build_shapes`, or None for a model of somebody's own that has no shapes without numbers."""
    try:
        return build_shapes(config, room)
    except StatewiseError:
        raise
    except Exception:  # building it tells what it was
        return None


def require_room(config: Buildable[nn.Module], device: torch.device) -> None:
    """Errors: TooLargeError, with the bytes needed and free; ConfigError as ``config.build()``."""
    model = require_shapes(config)
    if model is None:
        return
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    free = available_memory(device) if n_bytes > SMALL else None
    if free is not None and n_bytes > free:
        raise TooLargeError(
            f"the model needs {size(n_bytes)} of memory for its parameters, and {size(free)} are free on "
            f"{device.type}; use a smaller one"
        )


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Within it ``config.build()`` does not ask whether there is room."""
    token = _checked.set(False)
    try:
        yield
    finally:
        _checked.reset(token)


def by_number(build: Callable[[Any], ModelT]) -> Callable[[Any], ModelT]:
    """``ModelConfig.build``, refused before anything is allocated where there is no room for its parameters."""

    @functools.wraps(build)
    def checked(config: Any) -> ModelT:
        device = torch.get_default_device()
        if not _checked.get() or device.type == "meta":
            return build(config)
        require_room(config, device)
        try:
            return build(config)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, StatewiseError) or not (refused := NO_MEMORY.search(str(error) or "out of memory")):
                raise
            raise TooLargeError(f"its sizes make a model for which there is no memory ({refused[0]})") from error

    return checked
