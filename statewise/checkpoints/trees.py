"""Nested tuples, lists, dicts and NamedTuples of tensors as a flat dict of names, and back, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from statewise.errors import CheckpointError, InputError


def flatten_tree(tree: Any, prefix: str) -> dict[str, Tensor]:
    """Every tensor of the tree under its path: ``{"state.layers.0.ssm": ...}`` for the prefix "state".

    None is left out; :func:`unflatten_into` takes it from its template.

    Errors:  InputError naming a leaf that is neither a tensor nor None, or two leaves with one name.
    """
    found: dict[str, Tensor] = {}
    for path, leaf in tree_flatten_with_path(tree)[0]:
        name = _name(prefix, path)
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise InputError(f"{name} is a {type(leaf).__name__}; expected a tensor")
        if name in found:
            raise InputError(f"{name} names two leaves; rename one of the keys")
        found[name] = leaf
    return found


def unflatten_into(template: Any, tensors: Mapping[str, Tensor], prefix: str, *, same_shapes: bool = True) -> Any:
    """A tree like ``template``, made of the ``tensors`` of :func:`flatten_tree`, on the template's devices.

    ``same_shapes=False`` is for trees that grow with the data, such as the history of an attention layer: only the
    number of axes and the first axis must be the template's, and a floating tensor may be wider. Tensors without the
    prefix are ignored.

    Errors:  CheckpointError naming the first tensor that is missing, unexpected, or of a wrong shape or dtype.
    """
    leaves, structure = tree_flatten_with_path(template)
    names = [_name(prefix, path) for path, leaf in leaves]
    wanted = {name for name, (_, leaf) in zip(names, leaves) if leaf is not None}
    given = {name for name in tensors if name.startswith(f"{prefix}.") or name == prefix}
    for problem, differing in (("missing", wanted - given), ("unexpected", given - wanted)):
        if differing:
            raise CheckpointError(f"the tensor {min(differing)} is {problem}")
    return tree_unflatten(
        [
            leaf if leaf is None else _fit(name, tensors[name], leaf, same_shapes)
            for name, (_, leaf) in zip(names, leaves)
        ],
        structure,
    )


def _fit(name: str, tensor: Tensor, leaf: Tensor, same_shapes: bool) -> Tensor:
    expected = tuple(leaf.shape) if same_shapes else tuple(leaf.shape[:1]) + ("any",) * (leaf.ndim - 1)
    given = tuple(tensor.shape)
    if len(given) != len(expected) or any(e not in ("any", g) for g, e in zip(given, expected)):
        raise CheckpointError(f"{name} has shape {given}, expected ({', '.join(map(str, expected))})")
    wider = leaf.is_floating_point() and torch.promote_types(leaf.dtype, tensor.dtype) == tensor.dtype
    if tensor.dtype != leaf.dtype and (same_shapes or not wider):
        raise CheckpointError(f"{name} is {tensor.dtype}, expected {leaf.dtype}")
    return tensor.to(leaf.device)


def _name(prefix: str, path: tuple[Any, ...]) -> str:
    """The names, keys and numbers on the way to a leaf, joined by dots."""
    parts = [prefix]
    for entry in path:
        parts.append(str(next(getattr(entry, kind) for kind in ("name", "key", "idx") if hasattr(entry, kind))))
    return ".".join(parts)
