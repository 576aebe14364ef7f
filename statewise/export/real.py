"""Complex numbers as pairs of real ones, for runtimes that have none: a program is run once more on such pairs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from statewise.errors import InputError

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of complex numbers."""

    real: Any
    imag: Any


class RealArithmetic(fx.Interpreter):
    """Runs a graph of ATen operators with a :class:`Pair` for each complex tensor. Under a trace that gives the same
    graph in real arithmetic.

    Errors:  InputError for an operator on complex numbers that has no rule here, naming it.
    """

    def run_node(self, n: fx.Node) -> Any:
        if n.target is aten._assert_tensor_metadata.default:  # what is traced has these dtypes
            return None
        if n.target is torch.ops.higher_order.scan:
            return _scan(*self.fetch_args_kwargs_from_env(n)[0])
        value = n.meta.get("val")
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        into = isinstance(value, Tensor) and value.is_complex()
        if n.op != "call_function" or not (into or any(isinstance(m, Pair) for m in tree_leaves((args, kwargs)))):
            return super().run_node(n)
        if n.target is operator.getitem:  # of what a loop gives
            return args[0][args[1]]
        rule = RULES.get(n.target)
        if rule is None:
            raise InputError(
                f"the step has {n.target} on complex numbers, which statewise.export cannot write in real numbers"
            )
        return rule(*args, **kwargs)


def _scan(graph: fx.GraphModule, carry: Any, inputs: Any, constants: Any) -> list[Any]:
    """The loop on both parts of each pair that it is given."""
    from torch._higher_order_ops.scan import scan_op

    groups = [_Parts(list(values)) for values in (carry, inputs, constants)]
    outputs: list[_Parts] = []

    def step(*given: Tensor) -> list[Tensor]:
        rest = list(given)
        whole: list[Any] = []
        for group in groups:
            whole += group.join(rest[: group.n_parts])
            del rest[: group.n_parts]
        outputs.append(_Parts(list(RealArithmetic(graph).run(*whole))))
        return [x.clone() for x in outputs[-1].parts]

    found = scan_op(step, groups[0].parts, groups[1].parts, tuple(groups[2].parts))
    return outputs[-1].join(list(found))


class _Parts:
    """Values of which some are pairs, and all their parts in one list."""

    def __init__(self, values: list[Any]) -> None:
        self.are_pairs = [isinstance(m, Pair) for m in values]
        self.parts: list[Any] = [part for m in values for part in ((m.real, m.imag) if isinstance(m, Pair) else (m,))]
        self.n_parts = len(self.parts)

    def join(self, parts: list[Any]) -> list[Any]:
        """Others of the same kinds, as values."""
        rest = iter(parts)
        return [Pair(next(rest), next(rest)) if is_pair else next(rest) for is_pair in self.are_pairs]


def pair(x: Tensor) -> Pair:
    """The pair of a complex tensor."""
    return Pair(x.real, x.imag)


def _each(target: Callable[..., Any]) -> Callable[..., Any]:
    """What acts on both parts alike: views, and sums of pairs."""

    def apply(*args: Any, **kwargs: Any) -> Pair:
        real = tree_map(lambda m: m.real if isinstance(m, Pair) else m, args)
        imag = tree_map(lambda m: m.imag if isinstance(m, Pair) else m, args)
        return Pair(target(*real, **kwargs), target(*imag, **kwargs))

    return apply


def _as_pair(m: Any) -> Pair:
    if isinstance(m, Pair):
        return m
    return Pair(m, torch.zeros_like(m) if isinstance(m, Tensor) else 0.0)


def _sum(target: Callable[..., Any]) -> Callable[..., Any]:
    """x + y or x - y, of which one may be real."""
    return lambda x, y, **kwargs: _each(target)(_as_pair(x), _as_pair(y), **kwargs)


def _where(condition: Tensor, x: Any, y: Any) -> Pair:
    return _each(aten.where.self)(condition, _as_pair(x), _as_pair(y))


def _product(target: Callable[..., Any]) -> Callable[..., Any]:
    """Whatever is linear in both of its arguments."""

    def apply(x: Any, y: Any) -> Pair:
        if not (isinstance(x, Pair) and isinstance(y, Pair)):
            return _each(target)(x, y)
        real = target(x.real, y.real) - target(x.imag, y.imag)
        return Pair(real, target(x.real, y.imag) + target(x.imag, y.real))

    return apply


def _quotient(x: Any, y: Any) -> Pair:
    if not isinstance(y, Pair):
        return _each(aten.div.Tensor)(x, y)
    square = y.real * y.real + y.imag * y.imag
    above = _product(aten.mul.Tensor)(x, Pair(y.real, -y.imag))
    return Pair(above.real / square, above.imag / square)


def _exp(x: Pair) -> Pair:
    scale = x.real.exp()
    return Pair(scale * x.imag.cos(), scale * x.imag.sin())


def _abs(x: Pair) -> Tensor:
    return (x.real * x.real + x.imag * x.imag).sqrt()


def _view_as_complex(x: Tensor) -> Pair:
    return Pair(x.select(-1, 0), x.select(-1, 1))


def _view_as_real(x: Pair) -> Tensor:
    return torch.cat([x.real.unsqueeze(-1), x.imag.unsqueeze(-1)], -1)


def _to_copy(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
    x = _as_pair(x)
    return x if dtype is None else Pair(*(m.to(dtype.to_real()) for m in (x.real, x.imag)))


def _full_like(x: Any, value: complex, **_: Any) -> Pair:
    like = x.real if isinstance(x, Pair) else x
    return Pair(torch.full_like(like, complex(value).real), torch.full_like(like, complex(value).imag))


def _full(size: Any, value: complex, *, dtype: torch.dtype, **options: Any) -> Pair:
    parts = complex(value).real, complex(value).imag
    options.pop("layout", None), options.pop("pin_memory", None)
    return Pair(*(torch.full(size, part, dtype=dtype.to_real(), **options) for part in parts))


_LINEAR = (
    *(aten.view.default, aten.permute.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dims),
    *(aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default, aten.sum.dim_IntList),
    *(aten.neg.default, aten.cat.default),
)
RULES: dict[Any, Callable[..., Any]] = {
    **{target: _each(target) for target in _LINEAR},
    **{target: _product(target) for target in (aten.mul.Tensor, aten.bmm.default, aten.mm.default)},
    **{target: _sum(target) for target in (aten.add.Tensor, aten.sub.Tensor)},
    aten.where.self: _where,
    aten.div.Tensor: _quotient,
    aten.exp.default: _exp,
    aten.abs.default: _abs,
    aten._conj.default: lambda x: Pair(x.real, -x.imag),
    aten.complex.default: Pair,
    aten.view_as_complex.default: _view_as_complex,
    aten.view_as_real.default: _view_as_real,
    aten._to_copy.default: _to_copy,
    aten.full_like.default: _full_like,
    aten.sym_size.int: lambda x, axis: x.real.shape[axis],
    aten.sym_numel.default: lambda x: x.real.numel(),
    aten.full.default: _full,
    aten.scalar_tensor.default: lambda value, **options: _full((), value, **options),
}
