"""Models by name: starting points, to be trained as they are or to be changed field by field.

>>> from statewise.models.presets import PRESETS
>>> model = PRESETS["demo"](vocab_size=257)
>>> len(model.layers), model.d_model
(4, 192)
"""

from __future__ import annotations

from collections.abc import Callable

from statewise.mixers.attention import AttentionConfig
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


PRESETS: dict[str, Callable[[int], LanguageModelConfig]] = {"demo": demo, "tiny": tiny}
