"""What the registered operators take: the shapes and dtypes of their tensors, written down and checked in one place.

C reads memory by the sizes and the dtype of other arguments, and anybody can call ``torch.ops.statewise``. So every
operator is registered with its tensors as ``{"v": "w k n: complex", "z": "1|w m: as v", ...}``, the axes of each being

    w       a name for one size, the same wherever it occurs; an argument of that name that is a number is that size
    3       that size
    1|w     1, or the size w
    taps-1  one less than the size ``taps``, and not below 0
    *rows   any axes, the same wherever the name occurs; at most one in a shape

and behind the colon a dtype: one of ``DTYPES``, or one that is ``RELATED`` to that of another tensor. All tensors are
on one device and strided. Names are bound in the order in which the operator takes its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.precision import full_precision

Sizes = dict[str, Any]  # of a name its size, of *rows a tuple of them
# of sizes and arguments: what else is needed and is not so, None if nothing is
Needs = Callable[[Sizes, Mapping[str, Any]], str | None]

_REAL = (torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)
_FLOATING = (*_REAL, torch.bfloat16, torch.float16)
_INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = {
    "floating": _FLOATING,
    "real": _REAL,
    "complex": _COMPLEX,
    "number": (*_REAL, *_COMPLEX),
    "any": (*_FLOATING, *_COMPLEX),
    "integer": _INTEGER,
    "ids": (*_INTEGER, torch.bool),
    "int64": (torch.int64,),
}
RELATED: dict[str, Callable[[torch.dtype], tuple[torch.dtype, ...]]] = {
    "as": lambda dtype: (dtype,),
    "full": lambda dtype: (full_precision(dtype),),  # what C computes in
    "parts": lambda dtype: (dtype.to_real(),),
    "pairs": lambda dtype: (dtype.to_complex(),),
    "stored": lambda dtype: (dtype, torch.bfloat16) if dtype == torch.float32 else (dtype,),  # narrower than computed
    "narrow": lambda dtype: (dtype, torch.bfloat16, torch.float16) if dtype == torch.float32 else (dtype,),  # on a GPU
}
_SEEN = 1024  # calls of an operator that are remembered


def names_of(arguments: str) -> dict[str, str]:
    """The kinds of arguments by their names, from a schema."""
    return {key: kind for kind, key in (argument.split() for argument in arguments.split(", "))}


def checker(name: str, names: Mapping[str, str], takes: Mapping[str, str], needs: Needs | None) -> Callable[..., None]:
    """A function of an operator's arguments that raises InputError unless they fit.

    A call like one that fitted, in all shapes, dtypes and numbers, is looked up and not checked: a token's step calls
    many operators on small tensors, always alike. Where sizes are symbols nothing is checked, and the call that will
    have numbers is.
    """
    tensors = [key for key in names if names[key].startswith("Tensor")]
    assert tensors == list(takes), f"{name} is registered with {list(takes)}, and takes {tensors}"
    assert tensors == list(names)[: len(tensors)], f"{name} does not take its tensors first"
    parsed = {key: (axes.split(), dtype.split()) for key, (axes, dtype) in _split(takes).items()}
    seen: set[tuple[Any, ...]] = set()

    def check(*arguments: Any) -> None:
        key = tuple([(m.shape, m.dtype, m.device, m.layout) if isinstance(m, Tensor) else m for m in arguments])
        try:
            if key in seen:
                return
        except TypeError:  # a symbol cannot be hashed
            return
        given = dict(zip(names, arguments))
        sizes: Sizes = {key: m for key, m in given.items() if type(m) is int}
        present = {tensor: given[tensor] for tensor in takes if given[tensor] is not None}
        for tensor, m in present.items():
            _check_shape(name, tensor, m, parsed[tensor][0], sizes)
        for tensor, m in sorted(present.items(), key=lambda item: len(parsed[item[0]][1])):  # those of their own first
            _check_dtype(name, tensor, m, parsed[tensor][1], given)
        _check_places(name, present)
        wrong = None if needs is None else needs(sizes, given)
        if wrong is not None:
            raise InputError(f"the operator {name} needs {wrong}")
        if len(seen) >= _SEEN:
            seen.clear()
        seen.add(key)

    return check


def allocator(names: Iterable[str], takes: Mapping[str, str], gives: Mapping[str, str]) -> Callable[..., Any]:
    """A function of an operator's arguments, by their names: its outputs without values. Sizes may be symbols."""
    known = {key: axes.split() for key, (axes, _) in _split(takes).items()}
    wanted = [(axes.split(), dtype.split()) for axes, dtype in _split(gives).values()]

    def allocate(*arguments: Any) -> Any:
        given = dict(zip(names, arguments))
        sizes: Sizes = {key: m for key, m in given.items() if not isinstance(m, Tensor)}
        first = next(m for m in arguments if isinstance(m, Tensor))
        for tensor, axes in known.items():
            if given[tensor] is not None:
                _bind(axes, given[tensor].shape, sizes)
        outputs = []
        for axes, (word, of) in wanted:
            shape = [size for axis in axes for size in _known(axis, sizes)]
            outputs.append(torch.empty(shape, dtype=RELATED[word](given[of].dtype)[0], device=first.device))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return allocate


def is_differentiable(kind: str) -> bool:
    """Whether there is a gradient of a tensor that an operator takes as this."""
    dtype = kind.split(":")[1].split()
    return len(dtype) > 1 or DTYPES[dtype[0]][0].is_floating_point or DTYPES[dtype[0]][0].is_complex


def _split(takes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    found = {}
    for tensor, text in takes.items():
        axes, colon, dtype = text.partition(":")
        first, *of = dtype.split()
        assert colon, f"{tensor} has no dtype"
        assert first in (RELATED if of else DTYPES), f"{tensor} has the unknown dtype {dtype}"
        found[tensor] = (axes, dtype)
    return found


def _bind(axes: Sequence[str], shape: Sequence[Any], sizes: Sizes) -> None:
    """The names among the axes get the sizes of a shape that fits."""
    for i, axis in enumerate(axes):
        if axis[0] == "*":
            behind = len(axes) - 1 - i
            sizes[axis] = tuple(shape[i : len(shape) - behind])
            _bind(axes[i + 1 :], shape[len(shape) - behind :], sizes)
            return
        if axis.isidentifier():
            sizes[axis] = shape[i]


def _check_shape(name: str, tensor: str, m: Tensor, axes: Sequence[str], sizes: Sizes) -> None:
    shape = tuple(m.shape)
    star = next((i for i, axis in enumerate(axes) if axis[0] == "*"), None)
    expected: list[Any] = list(axes)
    have = list(shape)
    if star is not None and len(shape) >= len(axes) - 1:
        rest = shape[star : len(shape) - (len(axes) - 1 - star)]
        rest = sizes.setdefault(axes[star], rest)
        expected[star : star + 1] = rest
    if len(have) == len(expected) and all(_fits(axis, size, sizes) for axis, size in zip(expected, have)):
        return
    wanted = ", ".join(str(size) for axis in axes for size in _known(axis, sizes))
    raise InputError(f"the operator {name} needs {tensor} of shape ({wanted}); got {shape}, {m.dtype}")


def _fits(axis: str | int, size: int, sizes: Sizes) -> bool:
    """Whether the size is what the axis says; binds a name that is new."""
    if isinstance(axis, int):
        return size == axis
    if axis.isdigit():
        return size == int(axis)
    if axis.startswith("1|"):
        return size == 1 or bool(size == sizes[axis[2:]])
    if axis.endswith("-1"):
        return bool(size == sizes[axis[:-2]] - 1)
    return bool(sizes.setdefault(axis, size) == size)


def _known(axis: str, sizes: Sizes) -> Sequence[Any]:
    """The axis as a message says it: by its size where it is known."""
    if axis.endswith("-1"):
        return (sizes.get(axis[:-2], 0) - 1,) if axis[:-2] in sizes else (axis,)
    if axis.startswith("1|"):
        return (f"1 or {sizes.get(axis[2:], axis[2:])}",)
    found = int(axis) if axis.isdigit() else sizes.get(axis, axis)
    return found if isinstance(found, tuple) else (found,)


def _check_dtype(name: str, tensor: str, m: Tensor, words: Sequence[str], given: Mapping[str, Any]) -> None:
    wanted = DTYPES[words[0]] if len(words) == 1 else RELATED[words[0]](given[words[1]].dtype)
    if m.dtype not in wanted:
        kinds = " or ".join(map(str, wanted))
        raise InputError(f"the operator {name} needs {tensor} of {kinds}; got {m.dtype}, {tuple(m.shape)}")


def _check_places(name: str, tensors: Mapping[str, Tensor]) -> None:
    first = next(iter(tensors))
    for tensor, m in tensors.items():
        if m.layout != torch.strided:
            raise InputError(f"the operator {name} needs strided tensors; got {tensor} as {m.layout}")
        if m.device != tensors[first].device:
            raise InputError(
                f"the operator {name} needs its tensors on one device; got {first} on {tensors[first].device} and "
                f"{tensor} on {m.device}"
            )
