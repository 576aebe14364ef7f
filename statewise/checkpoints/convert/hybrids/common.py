"""Fields that several families say alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statewise.checkpoints.convert.decoder_configs import ACTIVATIONS as THEIR_ACTIVATIONS
from statewise.checkpoints.convert.fields import NO_LIMIT, bounded, count, interval, number, section, wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.family import UNSAID, Field
from statewise.mixers.mamba2 import Mamba2Config

WHERE = "its config"
ACTIVATIONS = THEIR_ACTIVATIONS | {"relu2": "relu2"}
FORMER = {"mamba": "linear_attention", "attention": "full_attention"}  # names of layers before version 5
_BACK = {"gelu_tanh": "gelu_pytorch_tanh", **{name: name for name in ("gelu", "relu", "relu2", "silu", "tanh")}}


def activation(theirs: str = "hidden_act", default: str = "silu") -> Field:
    """The name of a nonlinearity."""

    def into(value: Any, given: Config) -> str:
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise wrong(theirs, value, f"one of {', '.join(ACTIVATIONS)}", WHERE)
        return ACTIVATIONS[value]

    return Field(theirs, default, into, lambda value, within, d_model: _BACK[value])


def hidden(default: int | None, theirs: str = "intermediate_size") -> Field:
    """The width inside an MLP, or inside each expert, which ours says as a multiple of d_model."""

    def into(value: Any, given: Config) -> float:
        return count({theirs: value}, theirs, None, WHERE) / count(given, "hidden_size", None, WHERE)

    return Field(theirs, default, into, lambda expand, within, d_model: within.hidden_width(d_model))


def head_dim(given: Config) -> int:
    """The width of a head of attention: the field, or the width by the heads."""
    if given.get("head_dim") is not None:
        return count(given, "head_dim", None, WHERE)
    d_model, n_heads = (count(given, name, None, WHERE) for name in ("hidden_size", "num_attention_heads"))
    if d_model % n_heads:
        raise wrong("num_attention_heads", n_heads, f"a divisor of hidden_size, {d_model}", WHERE)
    return d_model // n_heads


D_HEAD = Field("head_dim", None, lambda value, given: head_dim(given))


def rotary(
    default_part: float = 1.0,
    default_base: float = 10_000.0,
    *,
    head_dim: Callable[[Config], int] = head_dim,
    top: bool = True,
) -> dict[str, Any]:
    """The base of rotary positions, and how many features of each head they turn.

    top: whether the library reads the part outside of the group too
    """

    def rope(given: Config) -> Mapping[str, Any]:
        found = section(given, "rope_scaling", WHERE) or section(given, "rope_parameters", WHERE)
        kind = found.get("rope_type", found.get("type", "default"))
        if kind != "default":
            raise wrong("rope_type", kind, "'default': positions as they were trained", WHERE)
        return found

    def base(value: Any, given: Config) -> float:
        return number({"rope_theta": given.get("rope_theta", default_base), **rope(given)}, "rope_theta", 0.0, WHERE)

    def part(value: Any, given: Config) -> int:
        name = "partial_rotary_factor"
        outside = given.get(name, default_part) if top else default_part
        return int(head_dim(given) * number({name: outside, **rope(given)}, name, 0.0, WHERE))

    def base_back(value: Any, within: Any, d_model: int) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": value}

    def part_back(value: Any, within: Any, d_model: int) -> Any:
        return UNSAID if value is None else {"partial_rotary_factor": value / within.d_head}

    return {
        "rotary_base": Field("rope_parameters", None, base, base_back),
        "d_rotary": Field("rope_parameters", None, part, part_back),
    }


def divisor(theirs: str, default: float = 1.0) -> Field:
    """A number that theirs divides by, and ours multiplies by."""

    def into(value: Any, given: Config) -> float:
        return 1.0 / number({theirs: value}, theirs, default, WHERE)

    return Field(theirs, default, into, lambda value, within, d_model: 1.0 / value)


def _limit(value: Any, given: Config) -> tuple[float, float]:
    return NO_LIMIT if value is None else interval({"time_step_limit": value}, "time_step_limit", NO_LIMIT, WHERE)


def _limit_back(value: tuple[float, float], within: Any, d_model: int) -> Any:
    return bounded("time_step_limit", value).get("time_step_limit", UNSAID)


def _least(value: Any, given: Config) -> tuple[float, float]:
    return number({"time_step_min": value}, "time_step_min", 0.001, WHERE), math.inf


DT_LIMIT = Field("time_step_limit", None, _limit, _limit_back)
LEAST_DT = Field("time_step_min", 0.001, _least, lambda value, within, d_model: value[0])  # and no largest


def inner_width(given: Config) -> int:
    return count(given, "mamba_expand", 2, WHERE) * count(given, "hidden_size", 4096, WHERE)


def expand_back(value: Any, within: Mamba2Config, d_model: int) -> int | float:
    """The inner width as a multiple of d_model, by which theirs checks the number of heads."""
    d_inner = within.heads(d_model) * within.d_head
    return d_inner / d_model if d_inner % d_model else d_inner // d_model


def layer_types(given: Config, default: Sequence[str]) -> list[str]:
    """The kind of each layer, by the names of version 5; those before it called them otherwise.

    Errors:  CheckpointError where the field's two names say different things.
    """
    said = {name: given[name] for name in ("layer_types", "layers_block_type") if given.get(name) is not None}
    kinds = [_layer_types(name, value) for name, value in (said or {"layer_types": default}).items()]
    if kinds[0] != kinds[-1]:
        raise wrong("layers_block_type", said["layers_block_type"], "what layer_types, its other name, says", WHERE)
    return kinds[0]


def _layer_types(name: str, found: Any) -> list[str]:
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise wrong(name, found, "a list with a name for each layer", WHERE)
    return [FORMER.get(str(name), str(name)) for name in found]


def types_back(names: Sequence[str], theirs: str = "layer_types") -> dict[str, Any]:
    """The field of kinds that begin with these names."""
    return {theirs: [name.split()[0] for name in names]}
