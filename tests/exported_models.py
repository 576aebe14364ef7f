"""Small models for the tests of ``statewise.export``: all layers that have a step, in two hybrids."""

from __future__ import annotations

import statewise as sw

VOCAB_SIZE = 61


def named() -> sw.LanguageModel:
    """The families that the export is for, each in a layer, the embedding tied."""
    mlp = sw.MLPConfig(expand=2, activation="gelu_tanh")
    layers = (
        sw.BlockConfig(mixer=sw.MambaConfig(d_state=4), mlp=mlp),
        sw.BlockConfig(mixer=sw.Mamba2Config(d_state=8, d_head=8, n_groups=2), mlp=sw.MLPConfig(gated=True)),
        sw.BlockConfig(mixer=sw.S4DConfig(d_state=8, n_heads=2), norm="layer"),
        sw.BlockConfig(mixer=sw.H3Config(d_state=20, d_head=8), placement="post"),
    )
    return build(layers, tie_embeddings=True)


def others() -> sw.LanguageModel:
    """Everything else but attention, with a table of positions and a head of its own."""
    layers = (
        sw.S4Config(d_state=8),
        sw.GSSConfig(d_state=8),
        sw.S5Config(d_state=8),
        sw.LMUConfig(theta=20, d_memory=2, d_state=8),
        sw.LSSLConfig(d_state=8),
        sw.LinearAttentionConfig(n_heads=4),
        sw.Mamba3Config(d_state=8, d_head=8),
        sw.MambaConfig(d_state=4, initialization="lin", method="zoh", n_taps=1),
        sw.BlockConfig(mixer=sw.S4DConfig(d_state=4, initialization="real", gated_output=False), norm="batch"),
    )
    return build(layers, tie_embeddings=False, max_positions=100)


def build(layers: tuple[sw.BlockConfig | sw.MixerConfig, ...], **options: object) -> sw.LanguageModel:
    return sw.LanguageModelConfig(vocab_size=VOCAB_SIZE, d_model=32, layers=layers, **options).build().eval()  # type: ignore[arg-type]
