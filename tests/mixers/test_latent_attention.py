"""Multi-head latent attention: the laws, and its equation from the definition of attention."""

from __future__ import annotations

import laws
import pytest
import torch
from attention_layers import decode, visible
from law_signals import prepared, same, through
from torch import Tensor

import statewise as sw
from statewise.mixers.causal_attention import attention_reference
from statewise.mixers.latent_attention import LatentAttention

CONFIGS = {
    "plain": sw.LatentAttentionConfig(n_heads=2, d_key=3, d_value=5, d_shared=2, rank=4),
    "with a rank for queries": sw.LatentAttentionConfig(
        n_heads=3, d_key=2, d_value=1, d_shared=4, rank=7, query_rank=5, bias=True, norm_eps=1e-3
    ),
}


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def reference(mixer: LatentAttention, x: Tensor) -> Tensor:
    config, tensors = mixer.config, dict(mixer.named_parameters())

    def projected(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)

    latent = projected("in_proj", x)
    c = normed(latent[..., : config.rank], tensors["norm.weight"], config.norm_eps)
    q = x
    if config.query_rank is not None:
        q = normed(projected("query_down", x), tensors["query_norm.weight"], config.norm_eps)
    q = projected("query_proj", q).unflatten(-1, (config.n_heads, -1))
    keys, values = [], []
    for up in tensors["up_proj.weight"].chunk(config.n_heads):
        keys.append(torch.cat((c @ up[: config.d_key].T, latent[..., config.rank :]), -1))
        values.append(c @ up[config.d_key :].T)
    y = attention_reference(q, torch.stack(keys, 2), torch.stack(values, 2))
    return projected("out_proj", y.flatten(2))


@pytest.mark.parametrize("name", CONFIGS)
def test_mixer_is_its_definition(name: str) -> None:
    torch.manual_seed(0)
    mixer = prepared(CONFIGS[name].build(6))
    assert isinstance(mixer, LatentAttention)
    x = torch.randn(2, 71, 6, dtype=torch.float64)
    expected = reference(mixer, x)
    same(mixer(x)[0], expected, 1e-11, "from rest")
    same(through(mixer, x.split((40, 30, 1), 1), mixer.initial_state(2)), expected, 1e-11, "in three calls")
    same(decode(mixer, x, mixer.initial_state(2))[0], expected, 1e-11, "token by token")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "batch"), [(1, 1), (17, 3)])
def test_laws(name: str, length: int, batch: int) -> None:
    laws.check_mixer_laws(CONFIGS[name].build(6), length=length, batch=batch, visible=visible)


def test_history_is_small_and_rarely_copied() -> None:
    mixer = sw.LatentAttentionConfig(n_heads=4, d_key=8, d_value=8, d_shared=2, rank=5).build(8)
    state, copies = mixer.initial_state(2), 0
    with torch.no_grad():
        for piece in torch.randn(2, 100, 8).split(1, 1):
            pointer = state.keys.data_ptr()
            _, state = mixer(piece, state)
            copies += state.keys.data_ptr() != pointer
    assert copies == 8  # at 1, 2, 4, ..., 128 slots
    assert state.keys.shape == (2, 128, 1, 7)
    assert state.values.numel() == 0


def test_dropout_is_of_training_alone() -> None:
    torch.manual_seed(0)
    mixer = sw.LatentAttentionConfig(n_heads=2, d_key=3, d_value=3, d_shared=2, rank=4, dropout=0.5).build(6)
    x = torch.randn(2, 9, 6)
    still = mixer.eval()(x)[0]
    same(mixer(x)[0], still, 0, "twice")
    mixer.train()
    assert (mixer(x)[0] - still).abs().max() > 1e-4
    assert (mixer(x, mixer.initial_state(2))[0] - still).abs().max() > 1e-4
