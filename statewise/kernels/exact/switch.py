"""The switch of exact mode, which belongs to a thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

from statewise import native
from statewise.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
_on: ContextVar[bool] = ContextVar("exact", default=False)


def is_exact() -> bool:
    """Whether this thread computes in exact mode."""
    return _on.get()


# For torch.compile, as in backend.py
is_exact._dynamo_marked_constant = True  # type: ignore[attr-defined]


def exact(on: bool = True) -> Exact:
    """Within it the numbers of a row are the same bit for bit, whether it is read whole, in any pieces, token by token,
    padded, packed or beside any other rows, on any number of threads.

    That holds for outputs, for states, and for the gradients of inputs and states, of every mixer and model; also
    for which of them are wanted, so that what is trained is what was generated. Gradients of weights are sums over all
    rows and steps of a call: they are the same on any number of threads, and differ in rounding from call to call if
    other rows come together. For a gradient, run ``backward`` within the block, too.

    It is a context manager and a decorator, of generators too, and belongs to the thread that enters it. A stream of
    :func:`statewise.generate` that begins within it stays exact wherever its tokens are taken. On the CPU, in float32,
    with the C kernels. An operation of which no exact form is known is refused by name; linear algebra is taken to
    be of parameters.

    on:      False changes nothing, for a switch that comes from an option
    Errors:  InputError without the C kernels; within it, for an operation, a dtype or a device without an exact form.

    >>> import torch
    >>> import statewise as sw
    >>> model = sw.LanguageModelConfig(vocab_size=9, d_model=16, layers=(sw.Mamba2Config(d_state=8, d_head=8),)).build()
    >>> tokens = torch.randint(9, (1, 12))
    >>> with sw.exact():
    ...     whole, _ = model(tokens)
    ...     first, state = model(tokens[:, :5], model.initial_state(1))
    ...     rest, _ = model(tokens[:, 5:], state)
    >>> torch.equal(whole, torch.cat([first, rest], 1))
    True
    """
    return Exact(on)


class Exact(ContextDecorator):
    """What :func:`exact` gives."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        switched = _switched(self.on)
        switched.__enter__()
        self._entered.append(switched)

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # type: ignore[override]
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"exact mode belongs to a thread, and {function.__name__} is a coroutine, which leaves it halfway; "
                "decorate what it calls"
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(function):
                return _each(function(*args, **kwargs), self.on)
            with exact(self.on):
                return function(*args, **kwargs)

        return run


def exact_throughout(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same: but an iterator that is made in exact mode, or of a first argument that is exact by itself, computes
    each of its items so, wherever it is asked."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        from statewise.kernels.exact.owner import exact_in  # which needs the switch

        on = is_exact() or any(exact_in(given) for given in (*args[:1], kwargs.get("model")))
        with exact(on):
            items = function(*args, **kwargs)
        return _each(items, True) if on else items

    return run


def _each(items: Iterator[T], on: bool) -> Iterator[T]:
    while True:
        with exact(on):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


@contextmanager
def _switched(on: bool) -> Iterator[None]:
    if not on or _on.get():
        yield
        return
    if not native.available():
        raise InputError(f"exact mode needs the C kernels, which are not available: {native.why_not()}")
    from statewise.kernels.exact.mode import ExactMode  # it needs every kernel, and they need the switch

    token = _on.set(True)
    try:
        with ExactMode():
            yield
    finally:
        _on.reset(token)


def of_parameters() -> AbstractContextManager[None]:
    """What is computed within it has no rows and no time: it is the same in every call, whatever computes it.

    So exact mode leaves it alone.
    """
    return _off() if is_exact() else nullcontext()  # torch.compile knows the second


@contextmanager
def unseen() -> Iterator[None]:
    """Within it exact mode looks at nothing: for a few calls that are known to be exact, and of which no gradient is
    wanted. A look at a call takes longer than many of them."""
    with _disable_current_modes():
        yield


@contextmanager
def _off() -> Iterator[None]:
    token = _on.set(False)
    try:
        yield
    finally:
        _on.reset(token)
