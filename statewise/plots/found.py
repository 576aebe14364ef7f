"""The mixer that a figure is of: given as such, or as a layer of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from statewise.errors import InputError
from statewise.insight import layer_input
from statewise.mixers.base import Mixer
from statewise.models.base import Model

NAMES = {"ContinuousSystem": "a continuous system", "DiscreteSystem": "a discrete system"}


class Found(NamedTuple):
    """of: a mixer, an operator or a system   name: for titles   x: what the mixer reads, if the figure needs it"""

    of: Any
    name: str
    x: Tensor | None = None


def find(of: Any, layer: int | None, fits: Callable[[Any], bool], what: str, inputs: Any = None) -> Found:
    """The mixer with which the figure can be drawn: of a model that of ``layer``, or of the first layer that fits.

    inputs:  what the mixer reads, or the model
    Errors:  InputError that says which layers fit.
    """
    if not isinstance(of, Model):
        if layer is not None:
            raise InputError(f"layer={layer!r} is for a model; a {type(of).__name__} is drawn as it is: leave it out")
        return _on_cpu(Found(of, NAMES.get(type(of).__name__, type(of).__name__), inputs))
    mixers = [block.mixer for block in of.blocks]
    fitting = [i for i, mixer in enumerate(mixers) if fits(mixer)]
    have = "layers that have: " + ", ".join(map(str, fitting)) if fitting else "no layer of this model has"
    if layer is None:
        if not fitting:
            kinds = ", ".join(sorted({type(mixer).__name__ for mixer in mixers}))
            raise InputError(f"no layer of this {type(of).__name__} has {what}; its layers are {kinds}")
        layer = fitting[0]
    elif isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < len(mixers):
        raise InputError(
            f"layer={layer!r} is not one of this {type(of).__name__}; it has layers 0 to {len(mixers) - 1}"
        )
    elif layer not in fitting:
        raise InputError(f"layer {layer} is {type(mixers[layer]).__name__}, which has no {what}; {have}")
    x = None if inputs is None else layer_input(of, inputs, layer)[1]
    return _on_cpu(Found(mixers[layer], f"layer {layer}, {type(mixers[layer]).__name__}", x))


def _on_cpu(found: Found) -> Found:
    """Where figures are drawn. A mixer that is elsewhere is copied."""
    x = found.x.cpu() if isinstance(found.x, Tensor) else found.x
    elsewhere = isinstance(found.of, Mixer) and any(m.device.type != "cpu" for m in found.of.parameters())
    return found._replace(of=copy.deepcopy(found.of).cpu() if elsewhere else found.of, x=x)


def is_any(*kinds: type[Mixer]) -> Callable[[Any], bool]:
    return lambda mixer: isinstance(mixer, kinds)


def spread(n: int, most: int) -> list[int]:
    """At most so many of n, evenly spread: the first and the last among them.

    >>> spread(3, 5), spread(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)] if most > 1 else [0]
