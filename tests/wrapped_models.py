"""Language models of every kind, small, for what wraps them; and what each row of a batch says alone."""

from __future__ import annotations

import torch
from torch import Tensor

import statewise as sw

MLP = sw.MLPConfig(expand=2)
LAYERS: dict[str, tuple[sw.MixerConfig | sw.BlockConfig, ...]] = {
    "mamba": (sw.MambaConfig(d_state=4), sw.MambaConfig(d_state=4)),
    "mamba2": (sw.Mamba2Config(d_state=8, d_head=8, n_groups=2), sw.Mamba2Config(d_state=8, d_head=8)),
    "mamba3": (sw.Mamba3Config(d_state=8, d_head=8),),
    "h3": (sw.BlockConfig(mixer=sw.H3Config(d_state=4), mlp=MLP, norm="layer"), sw.AttentionConfig(n_heads=2)),
    "s4d": (sw.S4DConfig(d_state=8), sw.S4Config(d_state=8)),
    "hybrid": (sw.Mamba2Config(d_state=8, d_head=8), sw.AttentionConfig(n_heads=4, n_kv_heads=2), sw.MambaConfig()),
    "window": (sw.AttentionConfig(n_heads=4, window=5), sw.LinearAttentionConfig(n_heads=4)),
}
EVERY = tuple(LAYERS)
VOCABULARY = 31


def build(
    name: str, *, vocab_size: int = VOCABULARY, dtype: torch.dtype = torch.float32, tied: bool = True, seed: int = 0
) -> sw.LanguageModel:
    """A model whose biases, norms and step sizes are not at what they begin with."""
    torch.manual_seed(seed)
    config = sw.LanguageModelConfig(
        vocab_size=vocab_size, d_model=16, layers=LAYERS[name], tie_embeddings=tied, embedding_std=0.5
    )
    model = config.build()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def rows(*lengths: int, seed: int = 0, vocab_size: int = VOCABULARY) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=g) for length in lengths]


def padded(tokens: list[Tensor], side: str, pad: int = 0) -> tuple[Tensor, Tensor]:
    """(batch, longest) ids and their attention mask."""
    longest = max(map(len, tokens))
    ids, mask = torch.full((len(tokens), longest), pad), torch.zeros(len(tokens), longest, dtype=torch.int64)
    for i, row in enumerate(tokens):
        where = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        ids[i, where], mask[i, where] = row, 1
    return ids, mask


def greedy(model: sw.LanguageModel, prompt: Tensor, n: int) -> list[int]:
    """What ``sw.generate`` says after one row."""
    return [int(token.ids) for token in sw.generate(model, prompt, max_new_tokens=n, temperature=0)]
