"""Modules that are exact by themselves: with ``exact = True`` their calls, and the gradients of these, are exact."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from statewise import native
from statewise.errors import InputError
from statewise.kernels.exact.switch import Exact, exact, is_exact

Method = TypeVar("Method", bound=Callable[..., Any])
_inside: ContextVar[bool] = ContextVar("within an exact call", default=False)
_PLAIN = (bool, int, float, str)  # what holds no gradients


class MayBeExact(nn.Module):
    """A module with a switch of its own, which is that of all such modules in it."""

    _exact: bool = False

    @property
    def exact(self) -> bool:
        """Whether every call runs in exact mode (:func:`statewise.exact`), and its gradient too, wherever ``backward``
        is called. Set it to True or False; it is how this module computes, and no part of its config or checkpoints.

        >>> import torch
        >>> import statewise as sw
        >>> model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build()
        >>> model.exact = True
        >>> tokens = torch.randint(9, (3, 12))
        >>> torch.equal(model(tokens)[0][1:2], model(tokens[1:2])[0])
        True
        """
        return self._exact

    @exact.setter
    def exact(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise InputError(f"exact={on!r} of {type(self).__name__}; expected True or False")
        if on and not native.available():
            raise InputError(f"exact mode needs the C kernels, which are not available: {native.why_not()}")
        for module in self.modules():
            if isinstance(module, MayBeExact):
                vars(module)["_exact"] = on

    def extra_repr(self) -> str:
        return "exact=True" if self._exact else ""


def exact_as(*modules: Any) -> Exact:
    """:func:`statewise.exact`, on if one of these is exact by itself: for what is computed beside their calls."""
    return exact(any(isinstance(module, MayBeExact) and module.exact for module in modules))


def exactly(method: Method) -> Method:
    """A method of a :class:`MayBeExact`, which runs in exact mode if that is exact by itself."""

    @functools.wraps(method)
    def run(self: MayBeExact, *args: Any, **kwargs: Any) -> Any:
        if not self._exact or _inside.get():
            return method(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            raise InputError(
                f"this {type(self).__name__} has exact=True, and exact mode sees every operation, which compiled and "
                "exported programs do not show; set exact = False"
            )
        with _within():
            if torch.is_grad_enabled():
                return _as_one_node(self, functools.partial(method, self), (args, kwargs))
            return method(self, *args, **kwargs)

    return cast(Method, run)


@contextmanager
def _within() -> Iterator[None]:
    token = _inside.set(True)
    try:
        with exact():
            yield
    finally:
        _inside.reset(token)


def _as_one_node(module: nn.Module, call: Callable[..., Any], given: Any) -> Any:
    """What the call returns. In the graph it is one node, whose derivative goes through the call's own graph in exact
    mode. So ``backward`` may be called anywhere."""
    leaves, form = pytree.tree_flatten(given)
    if not all(m is None or isinstance(m, (Tensor, *_PLAIN)) for m in leaves):
        return _guarded(call, given)
    places = [i for i, m in enumerate(leaves) if isinstance(m, Tensor) and m.requires_grad]
    outer = [leaves[i] for i in places]
    for i in places:
        leaves[i] = leaves[i].detach().requires_grad_()
    parameters = [m for m in module.parameters() if m.requires_grad]
    args, kwargs = pytree.tree_unflatten(leaves, form)
    found, form = pytree.tree_flatten(call(*args, **kwargs))
    taken = [i for i, m in enumerate(found) if isinstance(m, Tensor) and m.requires_grad]
    if taken:
        inner = [found[i] for i in taken], [*(leaves[i] for i in places), *parameters]
        for i, m in zip(taken, _Call.apply(inner, *outer, *parameters), strict=True):
            found[i] = m
    return pytree.tree_unflatten(found, form)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner: tuple[Sequence[Tensor], Sequence[Tensor]], *given: Tensor) -> tuple[Tensor, ...]:
        ctx.inner = inner
        ctx.set_materialize_grads(False)
        return tuple(m.detach() for m in inner[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise InputError(
                "a module with exact=True has no second derivative; leave out create_graph, or set exact = False and "
                "compute it within statewise.exact()"
            )
        outputs, inputs = ctx.inner
        sent = [(y, g) for y, g in zip(outputs, grads) if g is not None]
        wanted = [m for m, needed in zip(inputs, ctx.needs_input_grad[1:]) if needed]
        if not sent or not wanted:
            return None, *[None] * len(inputs)
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        with _within():
            found = iter(
                torch.autograd.grad(
                    [y for y, _ in sent], wanted, [g for _, g in sent], retain_graph=keep, allow_unused=True
                )
            )
        return None, *[next(found) if needed else None for needed in ctx.needs_input_grad[1:]]


def _guarded(call: Callable[..., Any], given: Any) -> Any:
    """The same for arguments that may hide tensors: in the graph as it is, whose gradient is refused elsewhere."""
    args, kwargs = given
    found = call(*args, **kwargs)
    for m in pytree.tree_leaves(found):
        if isinstance(m, Tensor) and m.requires_grad:
            m.register_hook(_refuse_outside)
    return found


def _refuse_outside(grad: Tensor) -> None:
    if not is_exact():
        raise InputError(
            "backward of a model with exact=True, which was given a state that can be rewound, would not be exact "
            "here; run it within statewise.exact(), or give the plain state"
        )
