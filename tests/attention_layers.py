"""Layers of attention for its tests, and what their states say."""

from __future__ import annotations

from typing import Any

import torch
from law_signals import prepared
from torch import Tensor

from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.attention_state import AttentionState

CONFIGS = {
    "full": AttentionConfig(n_heads=2),
    "grouped, bias": AttentionConfig(n_heads=4, n_kv_heads=2, bias=True),
    "window": AttentionConfig(n_heads=2, window=5, bias=True),
    "window of one": AttentionConfig(n_heads=2, n_kv_heads=1, window=1),
    "partly rotary": AttentionConfig(n_heads=2, n_kv_heads=1, d_head=6, d_rotary=4, rotary_base=100.0, window=33),
    "learned": AttentionConfig(n_heads=2, positions="learned", max_positions=400, bias=True),
    "scaled": AttentionConfig(n_heads=2, n_kv_heads=1, scale=1.0, window=6, bias=True),
    "normed heads": AttentionConfig(n_heads=4, n_kv_heads=2, d_head=6, d_rotary=2, qk_norm="head", window=6, gate=True),
    "normed, offset": AttentionConfig(
        n_heads=2, n_kv_heads=1, qk_norm="head", qk_norm_eps=1e-3, qk_norm_offset=True, gate=True, bias=True
    ),
    "normed together": AttentionConfig(n_heads=4, n_kv_heads=2, d_head=3, positions=None, qk_norm="all", scale=0.3),
    "no positions": AttentionConfig(n_heads=3, d_head=5, positions=None),
}


def visible(state: AttentionState) -> Any:
    """What a state says: each row's own slots, and the tokens read."""
    rows = [slice(int(start), int(end)) for start, end in zip(state.start, state.end)]
    return state.position, state.start, state.end, [(state.keys[b, r], state.values[b, r]) for b, r in enumerate(rows)]


def build(seed: int = 0, d_model: int = 8, **options: Any) -> Attention:
    torch.manual_seed(seed)
    mixer = prepared(AttentionConfig(**options).build(d_model))
    assert isinstance(mixer, Attention)
    return mixer


def decode(mixer: Attention, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
    """Token by token, nothing recorded."""
    outputs = []
    with torch.no_grad():
        for piece in x.split(1, 1):
            y, after = mixer(piece, state)
            assert after is not None
            state = after
            outputs.append(y)
    return torch.cat(outputs, 1), state
