"""Models by name: starting points, to be trained as they are or to be changed field by field.

>>> from statewise.models.presets import PRESETS
>>> model = PRESETS["demo"](vocab_size=257)
>>> len(model.layers), model.d_model
(4, 192)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig


def demo(vocab_size: int = 257) -> LanguageModelConfig:
    """About a million parameters: Mamba-2 layers and, as the third of them, attention over the last 128 tokens."""
    mamba = Mamba2Config(d_state=64, d_head=64)
    attention = AttentionConfig(n_heads=6, n_kv_heads=2, d_head=32, window=128)
    return LanguageModelConfig(vocab_size=vocab_size, d_model=192, layers=(mamba, mamba, attention, mamba))


def tiny(vocab_size: int = 257) -> LanguageModelConfig:
    """Twenty thousand parameters, to see in seconds that everything works."""
    mamba = Mamba2Config(d_state=16, d_head=16)
    attention = AttentionConfig(n_heads=2, d_head=16, window=64)
    return LanguageModelConfig(vocab_size=vocab_size, d_model=32, layers=(mamba, attention))


def mamba_130m(vocab_size: int = 50_280) -> LanguageModelConfig:
    """Mamba with 129 million parameters, in the sizes of ``state-spaces/mamba-130m``: its vocabulary is that of
    GPT-NeoX, 50,277 tokens, padded to a multiple of 8."""
    return LanguageModelConfig(vocab_size=vocab_size, d_model=768, layers=(MambaConfig(),) * 24)


def mamba2_130m(vocab_size: int = 50_288) -> LanguageModelConfig:
    """Mamba-2 with 129 million parameters, in the sizes of ``state-spaces/mamba2-130m``: the same vocabulary, padded to
    a multiple of 16."""
    return LanguageModelConfig(vocab_size=vocab_size, d_model=768, layers=(Mamba2Config(),) * 24)


def hybrid_130m(vocab_size: int = 50_288) -> LanguageModelConfig:
    """Mamba-2 with attention as the 6th, 12th and 18th of 24 layers, counted from 1: 122 million parameters.

    The attention has 12 heads of 64, 4 of them for keys and values, rotary positions, and sees all tokens before it.
    A tenth or so of the layers as attention, spread out, helped most in an ablation of Dao & Gu 2024,
    arXiv:2405.21060, sec. 9.2.3.
    """
    mamba, attention = Mamba2Config(), AttentionConfig(n_heads=12, n_kv_heads=4, d_head=64)
    layers = tuple(attention if i in (5, 11, 17) else mamba for i in range(24))
    return LanguageModelConfig(vocab_size=vocab_size, d_model=768, layers=layers)


def h3(
    vocab_size: int = 50_264,
    *,
    d_model: int,
    n_layers: int,
    n_heads: int,
    attention_at: tuple[int, ...],
    d_rotary: int | None = None,
) -> LanguageModelConfig:
    """H3 language models: H3 layers with one-wide heads, attention at the named positions, an MLP in each.

    vocab_size:   that of GPT-2, 50,257 tokens, padded to a multiple of 8
    n_heads:      of the attention, which has biases and no positions: the H3 layers tell them apart
    attention_at: counted from 0
    d_rotary:     rotary positions for this many features of each head of the attention
    """
    positions = None if d_rotary is None else "rotary"
    mlp = MLPConfig(expand=4, activation="gelu_tanh")
    attention = AttentionConfig(n_heads=n_heads, positions=positions, d_rotary=d_rotary, bias=True)
    layers = hybrid_layers(
        BlockConfig(mixer=H3Config(), mlp=mlp, norm="layer"),
        BlockConfig(mixer=attention, mlp=mlp, norm="layer"),
        n_layers=n_layers,
        at=attention_at,
    )
    return LanguageModelConfig(vocab_size=vocab_size, d_model=d_model, layers=layers, norm="layer")


# The sizes of the published H3 models, and where their attention is: the released weights do not have it where the
# paper says (sec. 3.3: the 2nd and the (2 + N/2)th of N layers).
_H3_SIZES = {
    "h3-125m": {"d_model": 768, "n_layers": 12, "n_heads": 12},
    "h3-355m": {"d_model": 1024, "n_layers": 24, "n_heads": 16},
    "h3-1.3b": {"d_model": 2048, "n_layers": 24, "n_heads": 16},
    "h3-2.7b": {"d_model": 2560, "n_layers": 32, "n_heads": 20},
}
_H3_RELEASED = {"h3-125m": (6,), "h3-355m": (8, 16), "h3-1.3b": (8, 16), "h3-2.7b": (8, 16, 24)}


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    "demo": demo,
    "tiny": tiny,
    "mamba-130m": mamba_130m,
    "mamba2-130m": mamba2_130m,
    "hybrid-130m": hybrid_130m,
    **{name: partial(h3, **size, attention_at=_H3_RELEASED[name]) for name, size in _H3_SIZES.items()},
    "h3-2.7b-rotary": partial(h3, **_H3_SIZES["h3-2.7b"], attention_at=(10, 21), d_rotary=64),
    **{
        f"{name}-paper": partial(h3, **size, attention_at=(1, 1 + size["n_layers"] // 2))
        for name, size in _H3_SIZES.items()
    },
}
