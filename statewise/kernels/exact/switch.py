"""The switch of exact mode, which belongs to a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from torch.utils._python_dispatch import _disable_current_modes

from statewise import native
from statewise.errors import InputError

_on: ContextVar[bool] = ContextVar("exact", default=False)


def is_exact() -> bool:
    """Whether this thread computes in exact mode."""
    return _on.get()


# For torch.compile, as in backend.py
is_exact._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def exact(on: bool = True) -> Iterator[None]:
    """Within it the numbers of a row are the same bit for bit, whether it is read whole, in any pieces, token by token,
    padded, packed or beside any other rows, on any number of threads.

    That holds for outputs, for states, and for the gradients of inputs and states, of every mixer and model; also
    for which of them are wanted, so that what is trained is what was generated. Gradients of weights are sums over all
    rows and steps of a call: they are the same on any number of threads, and differ in rounding from call to call if
    other rows come together. For a gradient, run ``backward`` within the block, too.

    It is a context manager and a decorator, and belongs to the thread that enters it. On the CPU, in float32, with the
    C kernels. An operation of which no exact form is known is refused by name.

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
