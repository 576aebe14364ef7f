"""Exact mode's view of every operation: which run as they are, which are replaced, and that no other runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.errors import InputError
from statewise.kernels.exact import kernels, products, sums
from statewise.kernels.exact.operations import MOVES, OF_PARAMETERS, ONE_ROUNDING
from statewise.kernels.exact.pointwise import UNARY
from statewise.kernels.exact.switch import is_exact


def _base(func: Any) -> str:
    """``add`` of aten::add_.Tensor"""
    name: str = func._schema.name.split("::")[1]
    return name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name


Rule = Callable[..., Any]
_RULES: dict[int, Rule] = {}


class ExactMode(TorchDispatchMode):
    """Sees every operation below autograd, of forward and backward passes alike."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_exact():
            return func(*args, **kwargs)
        if torch._C._is_tracing() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
            raise InputError(
                "a program is being traced in exact mode, whose kernels leave nothing in it; trace outside of "
                "statewise.exact(), with exact = False"
            )
        rule = _RULES.get(id(func))  # an operation stays where it is, and its hash is a call of Python
        if rule is None:
            rule = _RULES[id(func)] = _rule_of(func)
        if rule is _in_parts:
            if func is torch.ops.aten.dropout.default and not args[2]:
                return args[0]
            with self:
                return func.decompose(*args, **kwargs)
        return rule(func, args, kwargs)


def _rule_of(func: Any) -> Rule:
    space, base = func._schema.name.split("::")[0], _base(func)
    if space == "statewise":
        return kernels.RULES.get(base, _refuse)
    if space in ("prims", "profiler", "prim"):
        return _as_it_is
    if base == "var" and "correction" not in func._overloadname:
        return _in_parts
    for rules in (products.RULES, sums.RULES, UNARY):
        if base in rules:
            return _written(func, rules[base])
    if base in ONE_ROUNDING:
        return _one_rounding
    if base in MOVES or func.is_view or base.startswith(OF_PARAMETERS):
        return _as_it_is
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _in_parts
    return _of_integers


def _in_parts(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation that is made of others, which inference mode shows whole: the mode looks at its parts."""
    raise AssertionError("the mode does this itself")


def _as_it_is(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _written(func: Any, rule: Rule) -> Rule:
    """The rule, which gives a new tensor, also for the operation's form in place, and for the one with ``out=``."""
    if not func._schema.is_mutable or rule in sums.CALLED:
        return rule

    def run(of: Any, args: Any, kwargs: Any) -> Any:
        if "out" not in kwargs:
            return args[0].copy_(rule(of, args, kwargs))
        return _into(kwargs["out"], rule(of, args, {name: x for name, x in kwargs.items() if name != "out"}))

    in_place = func._schema.name.endswith("_")
    return run if in_place or [x.name for x in func._schema.arguments if x.is_out] == ["out"] else _refuse


def _into(out: Tensor, y: Tensor) -> Tensor:
    if out.shape != y.shape:
        out.resize_(y.shape)
    return out.copy_(y)


def _one_rounding(func: Any, args: Any, kwargs: Any) -> Any:
    """x + alpha y would be two roundings in one place and one in another, and so would complex products."""
    tensors = [m for m in args if isinstance(m, Tensor)]
    alpha = kwargs.get("alpha", 1)
    if len(args) == 3 and _base(func) in ("add", "sub", "rsub"):  # with a number, alpha has a place
        alpha = args[2]
    if alpha != 1 and any(m.is_floating_point() or m.is_complex() for m in tensors):
        first, second = args[:2]
        rest = {name: x for name, x in kwargs.items() if name != "alpha"}
        if _base(func) == "rsub":  # second - alpha first
            scaled = first * alpha
            return torch.sub(second, scaled, **rest) if isinstance(second, Tensor) else func(scaled, second, **rest)
        return func(first, second * alpha, **rest)
    if any(m.is_complex() for m in tensors):
        if "out" in kwargs:
            rest = {name: x for name, x in kwargs.items() if name != "out"}
            return _into(kwargs["out"], sums.complex_operation(func, args, rest))
        return sums.complex_operation(func, args, kwargs)
    return func(*args, **kwargs)


def _of_integers(func: Any, args: Any, kwargs: Any) -> Any:
    """What is exact for integers alone."""
    found = [m for m in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(m, Tensor)]
    if any(m.is_floating_point() or m.is_complex() for m in found):
        return _refuse(func, args, kwargs)
    return func(*args, **kwargs)


def _refuse(func: Any, args: Any, kwargs: Any) -> Any:
    found = [m for m in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(m, Tensor)]
    kinds = sorted({f"{str(m.dtype).removeprefix('torch.')} on {m.device.type}" for m in found})
    raise InputError(
        f"exact mode has no exact form of {func._schema.name} ({', '.join(kinds) or 'no tensors'}); compute it outside "
        "of statewise.exact(), or take another layer"
    )


def check_float32(name: str, *tensors: Tensor | None) -> None:
    """Errors:  InputError unless all are in float32 and on the CPU."""
    for m in tensors:
        if m is not None and (m.dtype != torch.float32 or m.device.type != "cpu"):
            raise InputError(
                f"exact mode computes {name} in float32 on the CPU, got {m.dtype} on {m.device.type}; "
                "use model.float() and inputs of float32, or first statewise convert FOLDER OTHER --dtype float32"
            )
