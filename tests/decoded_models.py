"""Models for the tests of decoding: every layer with a step in C, and every option that changes one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import statewise as sw
from statewise import native
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
VOCABULARY = 61
Block = sw.BlockConfig
MLP = sw.MLPConfig
# Widths that fill no vector, rows that fill no block, and every option that changes a step
LAYERS: dict[str, tuple[Any, ...]] = {
    "mamba": (MambaConfig(), MambaConfig(d_state=5, n_taps=2, dt_rank=7, method="zoh", bias=True)),
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
    "h3": (
        H3Config(d_state=6, d_shift=5),
        H3Config(d_state=22, d_head=2, d_shift=1, bias=False),
        H3Config(d_state=4, d_head=11, method="zoh"),
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
    "blocks": (
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1.5, activation="gelu", bias=False), norm="batch"),
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1, activation="relu"), norm="layer", placement="post"),
        Block(mixer=MambaConfig(d_state=4), mlp=MLP(expand=1, activation="tanh", gated=True)),
    ),
}


def build(layers: str, d_model: int = 22, **options: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(
        vocab_size=VOCABULARY, d_model=d_model, layers=LAYERS[layers], embedding_std=0.5, **options
    )
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


def recurrent_leaves(state: Any) -> list[Tensor]:
    layers = [layer for layer in state.layers if not hasattr(layer, "keys")]
    positions = [layer.position for layer in state.layers if hasattr(layer, "keys")]
    return [state.position, *positions, *tree_leaves(layers)]
