"""Hybrids, and the published H3 models: their sizes, and where their attention is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.hybrid import hybrid_layers
from statewise.models.presets import PRESETS


def test_layers_of_two_kinds() -> None:
    a, b = H3Config(), AttentionConfig(n_heads=2)
    assert hybrid_layers(a, b, n_layers=5, at=(3, 0)) == (b, a, a, b, a)
    assert hybrid_layers(a, b, n_layers=2, at=()) == (a, a)
    assert hybrid_layers(a, b, n_layers=3, at=np.array([1])) == (a, b, a)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_layers", "at", "words"),
    [
        (4, (1, 4), ["position 4", "0 to 3"]),
        (4, (-1,), ["position -1", "0 to 3"]),
        (4, (1, 2, 1), ["position 1", "twice"]),
        (4, (1.0,), ["position 1.0"]),
        (4, (True,), ["position True"]),
        (0, (), ["n_layers=0"]),
        (4, None, ["at=None", "at=(1, 3)"]),
        (4, 1, ["at=1;"]),
        (4, "12", ["at='12'"]),
    ],
)
def test_positions_that_cannot_be_are_refused(n_layers: int, at: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        hybrid_layers(H3Config(), AttentionConfig(n_heads=2), n_layers=n_layers, at=at)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_layer_is_a_config() -> None:
    with pytest.raises(ConfigError, match="other is a str; expected a BlockConfig or a mixer's config"):
        hybrid_layers(H3Config(), "attention", n_layers=2, at=(1,))  # type: ignore[type-var]


SIZES = {
    # name: d_model, layers, heads, and where the attention is, counted from 0
    "h3-125m": (768, 12, 12, (6,)),
    "h3-355m": (1024, 24, 16, (8, 16)),
    "h3-1.3b": (2048, 24, 16, (8, 16)),
    "h3-2.7b": (2560, 32, 20, (8, 16, 24)),
    "h3-2.7b-rotary": (2560, 32, 20, (10, 21)),
    "h3-125m-paper": (768, 12, 12, (1, 7)),
    "h3-355m-paper": (1024, 24, 16, (1, 13)),
    "h3-1.3b-paper": (2048, 24, 16, (1, 13)),
    "h3-2.7b-paper": (2560, 32, 20, (1, 17)),
}


def n_parameters(d: int, n_layers: int, n_attention: int) -> int:
    """Worked out from the tensors of the published checkpoints (SPEC C5), one by one."""
    norms, mlp = 4 * d, 4 * d * d + 4 * d + 4 * d * d + d
    projections = 4 * (d * d + d)
    shift = d * 64 + d * 64 + d  # B, C, ssm_k_D
    diagonal = 32 * d * 2 + 32 * d * 2 + 32 * d + 32 * d + d + d  # C, B, inv_A_real, A_imag, log_dt, D
    h3, attention = projections + shift + diagonal, 3 * d * d + 3 * d + d * d + d
    layers = n_layers * (norms + mlp) + (n_layers - n_attention) * h3 + n_attention * attention
    return 50_264 * d + layers + 2 * d  # the head is the embedding; ln_f


@pytest.mark.parametrize("name", SIZES)
def test_the_published_models(name: str) -> None:
    d_model, n_layers, n_heads, at = SIZES[name]
    config = PRESETS[name]()
    assert (config.vocab_size, config.d_model, len(config.layers)) == (50_264, d_model, n_layers)
    assert (config.norm, config.norm_eps, config.tie_embeddings) == ("layer", 1e-5, True)
    for i, block in enumerate(config.blocks):
        assert (block.norm, block.norm_eps, block.placement) == ("layer", 1e-5, "pre")
        assert block.mlp == sw.MLPConfig(expand=4, activation="gelu_tanh")
        if i in at:
            assert isinstance(block.mixer, AttentionConfig)
            assert (block.mixer.n_heads, block.mixer.bias) == (n_heads, True)
            rotary = ("rotary", 64) if name.endswith("rotary") else (None, None)
            assert (block.mixer.positions, block.mixer.d_rotary) == rotary
        else:
            assert block.mixer == H3Config(d_state=64, d_head=1)
    with torch.device("meta"):
        model = config.build()
    assert sum(p.numel() for p in model.parameters()) == n_parameters(d_model, n_layers, len(at))
    assert PRESETS[name](vocab_size=64).vocab_size == 64


def test_a_small_hybrid_generates_what_one_call_says() -> None:
    """Prefill, then frozen steps, through H3 and attention."""
    torch.manual_seed(0)
    mlp = sw.MLPConfig(expand=4, activation="gelu_tanh")
    h3, attention = (
        sw.BlockConfig(mixer=mixer, mlp=mlp, norm="layer")
        for mixer in (H3Config(d_state=8, d_shift=5), AttentionConfig(n_heads=2, positions=None, bias=True))
    )
    layers = hybrid_layers(h3, attention, n_layers=3, at=(1,))
    config = sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers, norm="layer", embedding_std=1.0)
    model = config.build().double().eval()
    tokens = torch.randint(0, 11, (2, 40))
    with torch.no_grad():
        whole, _ = model(tokens)
        frozen = model.freeze()
        y, state = frozen(tokens[:, :25], frozen.initial_state(2))
        steps = [y]
        for token in tokens[:, 25:].split(1, 1):
            y, state = frozen(token, state)
            steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-11, rtol=0)


@pytest.mark.parametrize("d_head", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_compiles(d_head: int) -> None:
    """One graph, with gradients."""
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=11, d_model=4, layers=(H3Config(d_state=4, d_head=d_head),))
    model, tokens = config.build(), torch.randint(0, 11, (2, 20))
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens)[0]
    want = model(tokens)[0]
    torch.testing.assert_close(y, want)
    actual, expected = (torch.autograd.grad(z.square().sum(), list(model.parameters())) for z in (y, want))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
