"""Fields that several families say alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statewise.checkpoints.convert.decoder_configs import ACTIVATIONS as THEIR_ACTIVATIONS
from statewise.checkpoints.convert.fields import NO_LIMIT, bounded, count, interval, number, section, wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.family import UNSAID, Field, Part
from statewise.errors import CheckpointError
from statewise.mixers.mamba2 import Mamba2Config

WHERE = "its config"
ACTIVATIONS = THEIR_ACTIVATIONS | {"relu2": "relu2"}
FORMER = {"mamba": "linear_attention", "attention": "full_attention"}  # names of layers before version 5
_BACK = {"gelu_tanh": "gelu_pytorch_tanh", **{name: name for name in ("gelu", "relu", "relu2", "silu", "tanh")}}


def model_fields(vocab_size: int | None, d_model: int | None, norm_eps: Field, **own: Field) -> dict[str, Field]:
    """Those of LanguageModelConfig that every family has; sizes are the library's defaults. own: more, or others."""
    return {
        "vocab_size": Field("vocab_size", vocab_size),
        "d_model": Field("hidden_size", d_model),
        "tie_embeddings": Field("tie_word_embeddings", False),
        "norm_eps": norm_eps,
        **own,
    }


def activation(theirs: str = "hidden_act", default: str = "silu") -> Field:
    """The name of a nonlinearity."""

    def into(value: Any, given: Config) -> str:
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise wrong(theirs, value, f"one of {', '.join(ACTIVATIONS)}", WHERE)
        return ACTIVATIONS[value]

    return Field(theirs, default, into, lambda value, within, d_model: _BACK[value])


def hidden(theirs: str = "intermediate_size", default: int | None = None, width: str = "hidden_size") -> Field:
    """The width inside an MLP, or inside each expert, which ours says as a multiple of d_model."""

    def into(value: Any, given: Config) -> float:
        return count({theirs: value}, theirs, None, WHERE) / count(given, width, None, WHERE)

    return Field(theirs, default, into, lambda expand, within, d_model: within.hidden_width(d_model))


def rotary(
    default_part: float = 1.0, default_base: float = 10_000.0, *, head_dim: Callable[[Config], int]
) -> dict[str, Field]:
    """The base of rotary positions, and how many features of each head they turn."""

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
        return int(head_dim(given) * number({name: given.get(name, default_part), **rope(given)}, name, 0.0, WHERE))

    def base_back(value: Any, within: Any, d_model: int) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": value}

    def part_back(value: Any, within: Any, d_model: int) -> Any:
        return UNSAID if value is None else {"partial_rotary_factor": value / within.d_head}

    return {
        "rotary_base": Field("rope_parameters", None, base, base_back),
        "d_rotary": Field("rope_parameters", None, part, part_back),
    }


def head_dim(given: Config, width: str = "hidden_size", heads: str = "num_attention_heads") -> int:
    """The width of a head of attention: the field, or the width by the heads."""
    if given.get("head_dim") is not None:
        return count(given, "head_dim", None, WHERE)
    d_model, n_heads = count(given, width, None, WHERE), count(given, heads, None, WHERE)
    if d_model % n_heads:
        raise wrong(heads, n_heads, f"a divisor of {width}, {d_model}", WHERE)
    return d_model // n_heads


def multiplier(theirs: str, default: float = 1.0) -> Field:
    return Field(theirs, default)


def divisor(theirs: str, default: float = 1.0) -> Field:
    """A number that theirs divides by, and ours multiplies by."""

    def into(value: Any, given: Config) -> float:
        return 1.0 / number({theirs: value}, theirs, default, WHERE)

    return Field(theirs, default, into, lambda value, within, d_model: 1.0 / value)


def dt_limit(theirs: str = "time_step_limit") -> Field:
    def into(value: Any, given: Config) -> tuple[float, float]:
        return NO_LIMIT if value is None else interval({theirs: value}, theirs, NO_LIMIT, WHERE)

    return Field(theirs, None, into, lambda value, within, d_model: bounded(theirs, value).get(theirs, UNSAID))


def least_dt() -> Field:
    """The least step size, of models that have no largest."""

    def into(value: Any, given: Config) -> tuple[float, float]:
        return number({"time_step_min": value}, "time_step_min", 0.001, WHERE), math.inf

    return Field("time_step_min", 0.001, into, lambda value, within, d_model: value[0])


def granite_mamba2(*, n_heads: int = 128, d_state: int = 256, eps: float = 1e-5) -> dict[str, Field | Part]:
    """Mamba-2 by the names of Bamba and those after it; sizes are the library's defaults."""

    def d_head(value: Any, given: Config) -> Any:
        if value != "auto":
            return value
        return inner_width(given) // count(given, "mamba_n_heads", n_heads, WHERE)

    return {
        "n_heads": Field("mamba_n_heads", n_heads),
        "d_head": Field("mamba_d_head", "auto", d_head),
        "d_state": Field("mamba_d_state", d_state),
        "n_groups": Field("mamba_n_groups", 1),
        "n_taps": Field("mamba_d_conv", 4),
        "convolution_bias": Field("mamba_conv_bias", True),
        "bias": Field("mamba_proj_bias", False),
        "dt_limit": dt_limit(),
        "norm_eps": Field("rms_norm_eps", eps),
        "expand": Field("mamba_expand", 2, lambda value, given: Mamba2Config.expand, expand_back),
    }


def inner_width(given: Config) -> int:
    return count(given, "mamba_expand", 2, WHERE) * count(given, "hidden_size", 4096, WHERE)


def expand_back(value: Any, within: Mamba2Config, d_model: int) -> int:
    """The inner width as a multiple of d_model, by which theirs checks the number of heads."""
    d_inner = within.heads(d_model) * within.d_head
    if d_inner % d_model:
        raise CheckpointError(f"the inner width of Mamba-2 is {d_inner}, which is not a multiple of d_model={d_model}")
    return d_inner // d_model


def gqa_attention(n_heads: int, n_kv_heads: int | None, *, bias: str | None = "attention_bias") -> dict[str, Field]:
    """Attention by the names that most families have; sizes are the library's defaults."""
    fields = {
        "n_heads": Field("num_attention_heads", n_heads),
        "n_kv_heads": Field("num_key_value_heads", n_kv_heads),
        "dropout": Field("attention_dropout", 0.0),
    }
    return fields if bias is None else fields | {"bias": Field(bias, False)}


def layer_types(given: Config, default: Sequence[str]) -> list[str]:
    """The kind of each layer, by the names of version 5; those before it called them otherwise."""
    found = given.get("layer_types", given.get("layers_block_type"))
    found = default if found is None else found
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise wrong("layer_types", found, "a list with a name for each layer", WHERE)
    return [FORMER.get(str(name), str(name)) for name in found]
