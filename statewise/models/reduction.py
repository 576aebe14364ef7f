"""A whole model with fewer states: its S4D layers reduced one by one, in a copy whose config says so."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from torch import nn

from statewise.errors import InputError, StatewiseError
from statewise.mixers.base import Mixer
from statewise.mixers.s4d import S4D
from statewise.mixers.s4d_reduction import ReducedS4D, is_even, reduce_s4d
from statewise.models.base import Model
from statewise.models.block import BlockConfig
from statewise.models.quantised import require_plain

ModelT = TypeVar("ModelT", bound=Model)


class ReducedModel(NamedTuple, Generic[ModelT]):
    """What :func:`reduce_model` returns.

    model:   the smaller model
    layers:  what :func:`~statewise.mixers.s4d_reduction.reduce_s4d` says of each layer that it reduced, by the name of
             its module, such as "layers.0.mixer"
    """

    model: ModelT
    layers: Mapping[str, ReducedS4D]


def reduce_model(model: ModelT, n_states: int) -> ReducedModel[ModelT]:
    """The model with ``n_states`` states a channel in its S4D layers, which computes nearly the same.

    Each S4D layer that has more states is reduced by :func:`~statewise.mixers.s4d_reduction.reduce_s4d`, also one
    inside another mixer; one layer in several places is reduced once, and is one layer again. All else is copied: other
    layers, dtypes, training mode, and the rate, at which the bounds hold. The given model stays as it
    is. The config of the new one fits, so you can save, load and train it as any other; a rate is not saved, of any
    model: set it again.

    Shapes:  n_states: even, at least 2   ->   :class:`ReducedModel`
    Cost:    that of ``reduce_s4d`` for each layer, and the memory of a second model.
    Errors:  InputError for a model that is frozen or has quantised weights, for an ``n_states`` out of place, and where
             no S4D layer has more states.

    >>> import statewise as sw
    >>> layers = (sw.S4DConfig(d_state=16), sw.AttentionConfig(n_heads=2))
    >>> model = sw.SequenceClassifierConfig(n_classes=3, d_input=1, d_model=4, layers=layers).build()
    >>> small, reduced = sw.reduce_model(model, 4)
    >>> small.config.layers[0].d_state, list(reduced)
    (4, ['layers.0.mixer'])
    """
    if not isinstance(model, Model):
        raise InputError(f"reduce_model needs a Model, such as a classifier; got {type(model).__name__}")
    if not is_even(n_states) or n_states < 2:
        raise InputError(f"n_states must be an even number of at least 2, got {n_states!r}")
    mixers = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, S4D)}
    larger = {name: mixer for name, mixer in mixers.items() if mixer.config.d_state > n_states}
    if not larger:
        found = f"those of its S4D layers are {sorted({m.config.d_state for m in mixers.values()})}"
        raise InputError(
            f"reduce_model: no layer has more than n_states={n_states} states to reduce; "
            f"{found if mixers else 'the model has no S4D layer'}"
        )
    once: dict[S4D, ReducedS4D] = {}
    for name, mixer in larger.items():
        if mixer in once:
            continue
        try:
            once[mixer] = reduce_s4d(mixer, n_states)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    layers = {name: once[mixer] for name, mixer in larger.items()}
    return ReducedModel(with_mixers(model, {name: reduced.layer for name, reduced in layers.items()}), layers)


def with_mixers(model: ModelT, mixers: Mapping[str, Mixer]) -> ModelT:
    """A copy of the model with other mixers of the same class, and with their configs in its own.

    mixers:  by the names of the modules in whose places they are put, such as "layers.0.mixer". They are not copied
    Errors:  InputError for a model that is frozen or has quantised weights, for a name that is not a mixer of the
             model's config, and for a mixer of another class, width or direction.
    """
    model._refuse_if_frozen("cannot have other mixers")
    require_plain(model, "other mixers are for plain numbers")
    other = copy.deepcopy(model)
    for name, mixer in mixers.items():
        try:
            _put(other, name.split("."), mixer)
        except StatewiseError:
            raise
        except (AttributeError, IndexError, ValueError):
            raise InputError(
                f"{name!r} is not a mixer that the config of this {type(model).__name__} names; expected a name such "
                "as 'layers.0.mixer'"
            ) from None
    return other


def _put(parent: Any, path: list[str], mixer: Mixer) -> Any:
    """Puts the mixer into its place under a module that has a config; the config that says so, which it has then."""
    field, *rest = path
    child, before = getattr(parent, field), getattr(parent.config, field)
    after: Any
    if isinstance(child, nn.ModuleList):
        i, *rest = (int(rest[0]), *rest[1:])
        block = _put(child[i], rest, mixer)
        layer = block if isinstance(before[i], BlockConfig) else block.mixer  # a bare mixer stays one
        after = (*before[:i], layer, *before[i + 1 :])
    elif rest:
        after = _put(child, rest, mixer)
    elif isinstance(child, Mixer):
        before, after = ((type(m).__name__, m.d_model, m.is_causal) for m in (child, mixer))
        if before != after:  # what is around it was built for one of this kind
            raise InputError(f"a mixer's class, d_model and is_causal must stay {before}; got {after}")
        setattr(parent, field, mixer)
        after = mixer.config
    else:
        raise AttributeError
    parent.config = replace(parent.config, **{field: after})
    return parent.config
