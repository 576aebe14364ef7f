"""Models for the tests of decoding: every mixer with a step in C, and every option that changes one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import families
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import statewise as sw
from statewise import native
from statewise.configuration.types import OneOf
from statewise.decoding import refusal
from statewise.decoding.mixers import MIXERS
from statewise.errors import ConfigError, StatewiseError
from statewise.mixers.attention import Attention
from statewise.mixers.attention_state import AttentionState
from statewise.mixers.h3 import H3Config
from statewise.mixers.latent_attention import LatentAttention
from statewise.mixers.mamba import MambaConfig

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
VOCABULARY = 61
Block = sw.BlockConfig
MLP = sw.MLPConfig
# Widths that fill no vector, rows that fill no block, and options that make sense only together
LAYERS: dict[str, tuple[Any, ...]] = {
    "mamba": (MambaConfig(), MambaConfig(d_state=5, n_taps=2, dt_rank=7, method="zoh", bias=True, norm_dt_b_c=True)),
    "mamba2": (
        sw.Mamba2Config(d_state=24, d_head=11, n_groups=2, norm_before_gate=True, bias=True, n_taps=1),
        sw.Mamba2Config(
            d_state=70, d_head=4, n_groups=11, norm_groups=2, dt_limit=(0.01, 0.05), convolution_bias=False
        ),
    ),
    "attention": (
        sw.AttentionConfig(n_heads=4, n_kv_heads=2, d_head=6, window=7, bias=True),
        sw.AttentionConfig(n_heads=2, positions="learned", max_positions=40),
        sw.AttentionConfig(n_heads=3, d_head=9, d_rotary=4, rotary_base=100.0),
        sw.AttentionConfig(n_heads=1, n_kv_heads=1, positions=None, window=1),
    ),
    "attention, normed and gated": (
        sw.AttentionConfig(
            n_heads=4, n_kv_heads=2, d_head=6, d_rotary=2, qk_norm="head", qk_norm_offset=True, gate=True
        ),
        sw.AttentionConfig(n_heads=2, n_kv_heads=1, d_head=7, positions=None, qk_norm="all", bias=True, window=5),
        Block(mixer=sw.GatedConvolutionConfig(), mlp=MLP(gated=True), norm="rms_offset"),
        sw.GatedConvolutionConfig(n_taps=1, bias=True),
    ),
    "attention, convolved": (
        sw.AttentionConfig(n_heads=4, n_kv_heads=2, d_head=6, n_taps=3, window=7, gate=True, qk_norm="head"),
        sw.AttentionConfig(n_heads=2, n_taps=1, positions="learned", max_positions=40, bias=True),
    ),
    "h3": (
        H3Config(d_state=6, d_shift=5),
        H3Config(d_state=22, d_head=2, d_shift=1, bias=False),
        H3Config(d_state=4, d_head=11, method="zoh"),
    ),
    "fast weights": (
        sw.KDAConfig(n_heads=3, d_key=7, d_value=5, rank=6, gate_bias=True, negative_eigenvalues=True, bias=True),
        sw.RWKV7Config(d_head=11, decay_rank=9, rate_rank=17, gate_rank=5),
    ),
    "rwkv": (
        sw.RWKV7Config(d_head=11, decay_rank=9, rate_rank=17, gate_rank=5),
        sw.ChannelMixConfig(expand=1.5),
        sw.RWKV7Config(d_head=2, decay_rank=3, rate_rank=4, gate_rank=5, value_rank=6),
        sw.RWKV7Config(d_head=22, decay_rank=3, rate_rank=4, gate_rank=5),
        sw.RWKV7Config(d_head=11, decay_rank=3, rate_rank=4, gate_rank=5, value_rank=1),
        sw.ChannelMixConfig(expand=2.0),
    ),
    "gated memories": (
        sw.GLAConfig(n_heads=2, d_key=20, d_value=3, rank=3, bias=True),
        sw.MLSTMConfig(n_heads=2, d_key=17, d_value=5, bias=True, gate_cap=4.0),
        sw.RGLRUConfig(d_inner=34, n_blocks=2),
    ),
    "latent": (
        sw.LatentAttentionConfig(n_heads=3, d_key=9, d_value=5, d_shared=3, rank=20, query_rank=7, bias=True),
        sw.RGLRUConfig(d_inner=18, n_blocks=3, n_taps=1, exponent=5.0),
        sw.LatentAttentionConfig(n_heads=2, d_key=33, d_value=17, d_shared=2, rank=270),
    ),
    "turning": (
        sw.Mamba3Config(d_state=21, d_head=11, n_groups=2, rope_fraction=0.6),
        sw.Mamba3Config(d_state=37, d_head=4, n_groups=11, mimo_rank=3, rope_fraction=1.0),
        sw.Mamba3Config(d_state=4, d_head=22, output_norm=True, decay="heavy_tail", a_floor=0.8),
        sw.Mamba3Config(d_state=18, d_head=2, mimo_rank=2, output_norm=True, dt_range=(0.02, 0.2)),
    ),
    "scaled": (
        Block(mixer=sw.Mamba2Config(d_state=6, d_head=4, n_heads=5, norm=False), branch_scale=0.22),
        Block(mixer=None, mlp=MLP(activation="relu2"), branch_scale=0.22),
        Block(mixer=sw.AttentionConfig(n_heads=2, d_head=10), mlp=MLP(gated=True), norm="layer", branch_scale=0.22),
        Block(mixer=MambaConfig(norm_dt_b_c=True, norm_weights=True), mlp=MLP(), norm="batch", branch_scale=0.22),
    ),
    "hybrid": (
        MambaConfig(d_state=8),
        Block(mixer=sw.Mamba2Config(d_state=16, d_head=11), mlp=MLP(activation="gelu_tanh"), norm="layer"),
        Block(
            mixer=sw.AttentionConfig(n_heads=2, d_head=10, window=5),
            mlp=MLP(activation="silu", gated=True),
            placement="post",
        ),
        H3Config(d_state=34),
    ),
    "beside": (
        Block(
            mixer=sw.AttentionConfig(n_heads=2, d_head=6, scale=1.0, window=5, bias=True, output_bias=False),
            mlp=MLP(),
            norm="layer",
            placement="parallel",
        ),
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1, gated=True), placement="parallel"),
    ),
    "experts": (
        Block(
            mixer=sw.Mamba2Config(d_state=6, d_head=4),
            mlp=sw.MoEConfig(
                n_experts=7, n_active=3, expand=0.8, normalize=True, shared=MLP(expand=1.2), shared_gate=True
            ),
        ),
        Block(
            mixer=None,
            mlp=sw.MoEConfig(
                n_experts=6,
                n_active=2,
                expand=0.9,
                router="sigmoid",
                correction_bias=True,
                n_groups=3,
                n_groups_active=2,
                route_scale=2.5,
                gated=False,
                activation="relu2",
                shared=MLP(expand=1, activation="relu2"),
            ),
        ),
        Block(
            mixer=sw.AttentionConfig(n_heads=2, d_head=10),
            mlp=sw.MoEConfig(n_experts=4, n_active=1, router="softmax_chosen", shared=MLP(gated=True, expand=1)),
            placement="post",
        ),
        Block(
            mixer=MambaConfig(d_state=4),
            mlp=sw.MoEConfig(n_experts=5, n_active=5, expand=1.6, d_latent=9, latent_bias=True),
            placement="after",
        ),
    ),
    "held": (
        Block(
            mixer=sw.ParallelMixersConfig(
                first=sw.AttentionConfig(n_heads=2, d_head=6, window=5),
                second=sw.Mamba2Config(
                    d_state=6, d_head=4, n_heads=5, norm=False, projection_scales=(0.5, 0.7, 2.0, 1.5, 0.9)
                ),
                input_scales=(0.8, 1.0),
                output_scales=(1.0, 0.3),
            ),
            mlp=MLP(gated=True, gate_scale=0.6, output_scale=1.7),
        ),
        *(
            sw.SharedTransformerConfig(
                mixer=mixer,
                attention=sw.AttentionConfig(n_heads=2, d_head=6),
                mlp=MLP(gated=True, expand=1.5, gate_scale=0.6),
                d_adapter=3,
                attention_adapters=adapters,
            )
            for mixer, adapters in (
                (MambaConfig(d_state=4), True),
                (sw.AttentionConfig(n_heads=1, d_head=6, positions="learned", max_positions=40), False),
            )
        ),
        Block(mixer=sw.GatedDeltaNetConfig(n_heads=2, d_key=5, d_value=7), mlp=MLP(), placement="after", norm="layer"),
    ),
    "blocks": (
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1.5, activation="gelu", bias=False), norm="batch"),
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1, activation="relu"), norm="layer", placement="post"),
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1, activation="tanh", gated=True)),
    ),
}
VALUES = (None, True, False, 1, 3, 0.05, (0.01, 0.05))  # that options are given, where they can be had


def options() -> Iterator[Any]:
    """The configs of each mixer that the table of steps names, and the first with every option that is not as it was.

    What the tests' families hold of it is enough: a new mixer need not be named here.
    """
    varied = set()
    for name, config in families.MIXERS.items():
        if type(config.build(24)) not in MIXERS:
            continue
        yield pytest.param(config, id=name)
        if type(config) in varied:
            continue
        varied.add(type(config))
        declared = typing.get_type_hints(type(config), include_extras=True)
        for field in dataclasses.fields(config):
            for value in (*VALUES, *_names(declared[field.name])):
                try:
                    other = dataclasses.replace(config, **{field.name: value})
                    other.build(24)
                except ConfigError:
                    continue
                if other != config and type(getattr(other, field.name)) is type(value):
                    yield pytest.param(other, id=f"{name}: {field.name}={value}")


def _names(declared: Any) -> Iterator[Any]:
    for part in typing.get_args(declared):
        yield from part.values if isinstance(part, OneOf) else _names(part)


def build(layers: str | tuple[Any, ...], d_model: int = 22, **options: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = LAYERS[layers] if isinstance(layers, str) else layers
    config = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=d_model, layers=layers, embedding_std=0.5, **options)
    model = config.build().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or "bias" in name or "running" in name:
                tensor.add_(0.2 * torch.rand_like(tensor))
            elif name.endswith("_proj.weight"):
                tensor.mul_(2)
    return model


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(batch))


def ragged_state(model: sw.LanguageModel, batch: int) -> Any:
    """Rows of different lengths, so of different positions, with spare slots."""
    lengths = torch.arange(batch) % 4 + 2
    with torch.no_grad():
        _, state = model(tokens_of(batch, 5), model.initial_state(batch), lengths=lengths)
        _, state = model(tokens_of(batch, 1), state)
    return state


def is_history(part: Any) -> bool:
    return isinstance(part, AttentionState)


def recurrent_leaves(state: Any) -> list[Tensor]:
    parts = tree_leaves(state.layers, is_leaf=is_history)
    positions = [part.position for part in parts if is_history(part)]
    return [state.position, *positions, *(part for part in parts if not is_history(part))]


def said(model: sw.LanguageModel, state: Any) -> list[Tensor]:
    """All that a state says: recurrent leaves, and the keys and values that the next token of each row can see."""
    leaves = recurrent_leaves(state)
    for block, layer in zip(model.blocks, state.layers):
        histories = [part for part in tree_leaves(layer, is_leaf=is_history) if is_history(part)]
        readers = [mixer for mixer in block.mixer.parts() if isinstance(mixer, (Attention, LatentAttention))]
        for history, reader in zip(histories, readers, strict=True):
            window = getattr(reader.config, "window", None)
            for row, (start, end) in enumerate(zip(history.start.tolist(), history.end.tolist())):
                first = start if window is None else max(start, end - window + 1)
                leaves += [history.keys[row, first:end], history.values[row, first:end]]
    return leaves


def decodes(config: Any) -> sw.LanguageModel | None:
    """A model of one layer with a step in C; None if it has none, reads in both directions, or not so far."""
    try:
        model = build((config,), d_model=24)
        model(tokens_of(1, 20))
    except StatewiseError:
        return None
    return None if refusal(model) else model


def equal(ones: list[Tensor], others: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
