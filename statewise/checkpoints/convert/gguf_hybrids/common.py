"""Keys that several architectures say alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Shapes, count
from statewise.checkpoints.convert.gguf_values import Values

KV = "attention.head_count_kv"
SYSTEM = {
    "ssm.conv_kernel": count("mamba_d_conv"),
    "ssm.state_size": count("mamba_d_state"),
    "ssm.group_count": count("mamba_n_groups"),
    "ssm.time_step_rank": count("mamba_n_heads"),
}


def has(shapes: Shapes, ending: str) -> bool:
    return any(name.endswith(ending) for name in shapes)


def each(values: Values, key: str, given: Config) -> list[int]:
    """A key with one number for each layer, or with one for all."""
    return values.each(key, given["num_hidden_layers"])


def one_of(values: Values, key: str, numbers: Sequence[int]) -> int:
    """The one number of all layers that have any.

    Errors:  CheckpointError if they have several, or none of them has.
    """
    found = sorted(set(numbers) - {0})
    if len(found) != 1:
        raise values.wrong(key, "expected one number for all layers that have any")
    return found[0]


def system_width(values: Values, given: Config) -> dict[str, Any]:
    """The width of a head, from that of all."""
    n_heads, d_inner = given["mamba_n_heads"], values.count("ssm.inner_size")
    if d_inner % n_heads:
        raise values.wrong("ssm.inner_size", f"expected a multiple of ssm.time_step_rank, {n_heads}")
    return {"mamba_d_head": d_inner // n_heads}


def attention_width(values: Values, given: Config, *, width: int | None = None) -> int:
    """The width of a head of attention; rope.dimension_count, where it is said, is that."""
    n_heads, d_model = given["num_attention_heads"], given["hidden_size"]
    if width is None and d_model % n_heads:
        raise values.wrong("attention.head_count", f"expected a divisor of embedding_length, {d_model}")
    found = d_model // n_heads if width is None else width
    if values.count("rope.dimension_count", found) != found:
        raise values.wrong("rope.dimension_count", f"expected the width of a head, {found}")
    return found
