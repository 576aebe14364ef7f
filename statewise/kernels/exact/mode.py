"""Exact mode's view of every operation: which run as they are, which are replaced, and that no other runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.errors import InputError
from statewise.kernels.exact import kernels, products, sums
from statewise.kernels.exact.pointwise import UNARY
from statewise.kernels.exact.switch import is_exact

# One rounding for each number, or none: the same whatever lies beside it. Their forms in place and with numbers too.
ONE_ROUNDING = frozenset(
    "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min div eq floor "
    "fmax fmin fmod ge gt isfinite isinf isnan isneginf le logical_and logical_not logical_or logical_xor lt maximum minimum "
    "mul ne neg reciprocal relu round rsub sgn sign sqrt sub threshold_backward trunc".split()
)
# Memory, shapes, choices and integers.
MOVES = frozenset(
    "_conj _local_scalar_dense _neg_view _pin_memory _reshape_alias _shape_as_tensor _to_copy _unsafe_view alias all "
    "amax amin any arange argmax argmin argsort as_strided cat clone complex constant_pad_nd copy_ copy detach diagonal "
    "diagonal_copy diagonal_backward diagonal_scatter embedding empty empty_like empty_permuted empty_strided equal "
    "expand eye fill flip full full_like gather imag index index_fill index_put index_select is_same_size isin item "
    "lift_fresh linspace masked_fill masked_scatter masked_select max min new_empty new_empty_strided new_full new_ones "
    "new_zeros nonzero one_hot ones ones_like permute real repeat repeat_interleave resize_ resolve_conj "
    "resolve_neg roll scalar_tensor scatter searchsorted select select_backward select_scatter set_ slice slice_backward "
    "slice_scatter sort split split_with_sizes squeeze stack sym_numel sym_size sym_storage_offset sym_stride t topk "
    "transpose tril triu unbind unfold unsafe_split unsqueeze view view_as view_as_complex view_as_real where zero "
    "zeros zeros_like lift bucketize tril_indices triu_indices unique_dim _unique2 set_data rand rand_like randn "
    "randn_like randint randperm uniform normal bernoulli multinomial native_dropout unfold_backward random exponential "
    "_assert_async _assert_scalar movedim".split()
)
# Of parameters alone, wherever they are called: matrices have no rows of a batch and no time.
OF_PARAMETERS = ("linalg_", "_linalg_", "triangular_solve", "lu_", "cholesky", "trace", "vander")


def _base(func: Any) -> str:
    """``add`` of aten::add_.Tensor"""
    name: str = func._schema.name.split("::")[1]
    return name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name


Rule = Callable[..., Any]
_RULES: dict[Any, Rule] = {}


class ExactMode(TorchDispatchMode):
    """Sees every operation below autograd, of forward and backward passes alike."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_exact():
            return func(*args, **kwargs)
        rule = _RULES.get(func)
        if rule is None:
            rule = _RULES[func] = _rule_of(func)
        if rule is _in_parts:
            with self:
                return func.decompose(*args, **kwargs)
        return rule(func, args, kwargs)


def _rule_of(func: Any) -> Rule:
    space, base = func._schema.name.split("::")[0], _base(func)
    if space == "statewise":
        return kernels.RULES.get(base, _refuse)
    if space in ("prims", "profiler", "prim"):
        return _as_it_is
    if base in products.RULES:
        return products.RULES[base]
    if base in sums.RULES:
        return sums.RULES[base]
    if base in UNARY:
        return UNARY[base]
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


def _one_rounding(func: Any, args: Any, kwargs: Any) -> Any:
    """x + alpha y would be two roundings in one place and one in another, and so would complex products."""
    alpha = kwargs.get("alpha", 1)
    tensors = [m for m in args if isinstance(m, Tensor)]
    if alpha != 1 and any(m.is_floating_point() or m.is_complex() for m in tensors):
        first, second = args[:2]
        scaled = second * alpha
        return func(first, scaled)
    if any(m.is_complex() for m in tensors):
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
                "use model.float() and inputs of float32"
            )
