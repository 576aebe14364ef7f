"""Models by name: starting points, to be trained as they are or to be changed field by field.

>>> from statewise.models.presets import PRESETS
>>> model = PRESETS["demo"](vocab_size=257)
>>> len(model.layers), model.d_model
(4, 192)
"""

from __future__ import annotations

from collections.abc import Callable

from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.language_model import LanguageModelConfig


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


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    "demo": demo,
    "tiny": tiny,
    "mamba-130m": mamba_130m,
    "mamba2-130m": mamba2_130m,
    "hybrid-130m": hybrid_130m,
}
