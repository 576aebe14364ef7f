"""Modules that are exact by themselves: with ``exact = True`` their calls are in exact mode, wherever they are made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from statewise import native
from statewise.errors import InputError
from statewise.kernels.exact.switch import exact, is_exact

Method = TypeVar("Method", bound=Callable[..., Any])


class MayBeExact(nn.Module):
    """A module with a switch of its own, which is that of all such modules in it."""

    _exact: bool = False

    @property
    def exact(self) -> bool:
        """Whether every call runs in exact mode (:func:`statewise.exact`). Its gradients are to be computed there, too:
        ``backward`` outside of ``with sw.exact():`` is refused. Set it to True or False, before you make a decoder, a
        stream or a frozen copy; it is how this module computes, and no part of its config or checkpoints.

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


def exact_in(module: Any) -> bool:
    """Whether it, or a module in it, is exact by itself."""
    return isinstance(module, nn.Module) and any(getattr(m, "_exact", False) is True for m in module.modules())


def exactly(method: Method) -> Method:
    """A method of a :class:`MayBeExact`, which runs in exact mode if that is exact by itself."""

    @functools.wraps(method)
    def run(self: MayBeExact, *args: Any, **kwargs: Any) -> Any:
        if not self._exact:
            return method(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            raise InputError(
                f"this {type(self).__name__} has exact=True, and exact mode sees every operation, which compiled and "
                "exported programs do not show; set exact = False"
            )
        with exact():
            found = method(self, *args, **kwargs)
        if torch.is_grad_enabled():
            given = {id(m) for m in _tensors((args, kwargs))}
            for m in _tensors(found):
                if m.grad_fn is not None and id(m) not in given:
                    m.register_hook(_refuse_outside)
        return found

    return cast(Method, run)


def _tensors(tree: Any) -> list[Tensor]:
    """Those of a state that can be rewound, too, which holds its own."""
    leaves = pytree.tree_leaves(tree)
    inner = [m.state for m in leaves if not isinstance(m, Tensor) and hasattr(m, "state")]
    return [m for m in [*leaves, *pytree.tree_leaves(inner)] if isinstance(m, Tensor)]


def _refuse_outside(grad: Tensor) -> None:
    if not is_exact():
        raise InputError(
            "backward through a module with exact=True would not be exact here; run it within statewise.exact()"
        )
