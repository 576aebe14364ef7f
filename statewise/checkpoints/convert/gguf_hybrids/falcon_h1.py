"""Falcon-H1: ``falcon-h1``. Its multipliers have no keys: they are multiplied into the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Folded, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import SYSTEM, has, system_width
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias", "mamba_conv_bias": "ssm_conv1d.bias"}


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    d_head = values.count("attention.key_length")
    for key in ("attention.value_length", "rope.dimension_count"):
        if values.count(key, d_head) != d_head:
            raise values.wrong(key, f"expected attention.key_length, {d_head}")
    width = system_width(values, given)
    return {
        **width,
        **{name: has(shapes, ending) for name, ending in BIASES.items()},
        "head_dim": d_head,
        "mamba_d_ssm": given["mamba_n_heads"] * width["mamba_d_head"],
        "mamba_rms_norm": has(shapes, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    d_head = given["head_dim"]
    return {
        "attention.key_length": d_head,
        "attention.value_length": d_head,
        "rope.dimension_count": d_head,
        "ssm.inner_size": given["mamba_n_heads"] * given["mamba_d_head"],
    }


def folded(config: LanguageModelConfig, tensors: Mapping[str, Tensor]) -> Folded:
    """Each number is multiplied into the matrix that makes what it multiplies."""
    found = dict(tensors)
    scales = (config.embedding_scale, config.logit_scale)
    if config.tie_embeddings and scales[0] != scales[1]:
        found["head.weight"] = found["embedding.weight"]
    for name, scale in zip(("embedding.weight", "head.weight"), scales):
        if name in found:
            found[name] = _times(found[name], scale)
    blocks = tuple(_block(block, f"layers.{i}.", config.d_model, found) for i, block in enumerate(config.blocks))
    tied = config.tie_embeddings and scales[0] == scales[1]
    return replace(config, layers=blocks, embedding_scale=1.0, logit_scale=1.0, tie_embeddings=tied), found


def _block(block: BlockConfig, prefix: str, d_model: int, found: dict[str, Tensor]) -> BlockConfig:
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, ParallelMixersConfig) and isinstance(mixer.first, AttentionConfig):
        first, second = mixer.first, mixer.second
        d_head = first.head_width(d_model)
        n_kv_heads = first.n_heads if first.n_kv_heads is None else first.n_kv_heads
        rows = [n * d_head for n in (first.n_heads, n_kv_heads, n_kv_heads)]
        keys, (a, b), (c, d) = first.scale_of(d_head) * d_head**0.5, mixer.input_scales, mixer.output_scales
        _scaled(found, f"{prefix}mixer.first.in_proj.weight", rows, (a, a * keys, a))
        _scaled(found, f"{prefix}mixer.first.in_proj.bias", rows, (1.0, keys, 1.0))
        if isinstance(second, Mamba2Config):
            d_inner, wide = second.heads(d_model) * second.d_head, second.n_groups * second.d_state
            parts = second.projection_scales or (1.0,) * 5
            rows = [d_inner, d_inner, wide, wide, second.heads(d_model)]
            _scaled(found, f"{prefix}mixer.second.in_proj.weight", rows, tuple(b * scale for scale in parts))
            _scaled(found, f"{prefix}mixer.second.in_proj.bias", rows, parts)
            second = replace(second, projection_scales=None)
        for name, scale in (("first", c), ("second", d)):
            for part in ("weight", "bias"):
                _scaled(found, f"{prefix}mixer.{name}.out_proj.{part}", None, (scale,))
        both, ones = (replace(first, scale=None), second), (1.0, 1.0)
        mixer = ParallelMixersConfig(first=both[0], second=both[1], input_scales=ones, output_scales=ones)
    if isinstance(mlp, MLPConfig):
        halves = [mlp.hidden_width(d_model)] * (1 + mlp.gated)
        for part in ("weight", "bias"):
            _scaled(found, f"{prefix}mlp.in_proj.{part}", halves, (mlp.gate_scale, 1.0))
            _scaled(found, f"{prefix}mlp.out_proj.{part}", None, (mlp.output_scale,))
        mlp = replace(mlp, gate_scale=1.0, output_scale=1.0)
    return replace(block, mixer=mixer, mlp=mlp)


def _scaled(found: dict[str, Tensor], name: str, rows: list[int] | None, scales: tuple[float, ...]) -> None:
    """rows: how many each number multiplies; None: all"""
    if name in found and set(scales) != {1.0}:
        parts = [found[name]] if rows is None else found[name].split(rows)
        found[name] = torch.cat([_times(part, scale) for part, scale in zip(parts, scales)])


def _times(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1.0 else (tensor.double() * scale).to(torch.promote_types(tensor.dtype, torch.float32))


ARCHITECTURE = Architecture(
    name="falcon-h1",
    family="falcon_h1",
    keys={
        "embedding_length": count("hidden_size"),
        "feed_forward_length": count("intermediate_size"),
        "attention.head_count": count("num_attention_heads"),
        "attention.head_count_kv": count("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
        "rope.freq_base": number("rope_theta", 10_000.0),
        **SYSTEM,
    },
    read=read,
    write=write,
    second="ffn_norm",  # as llama.cpp has it, without an ending
    folded=folded,
)
