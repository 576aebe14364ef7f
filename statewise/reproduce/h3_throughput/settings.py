"""The settings of ``h3-throughput``, and the two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from statewise.configuration import Config
from statewise.configuration.types import (
    AtLeastTwo,
    Count,
    Depth,
    Distinct,
    EvenCount,
    Natural,
    OneOf,
)
from statewise.decoding import PRECISIONS
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

TRANSFORMER, HYBRID = "Transformer", "H3 hybrid"


@dataclass(frozen=True, kw_only=True)
class H3ThroughputSettings(Config):
    """prompts:      lengths of the prompts, in tokens; n_new: tokens that are generated after each
    batch:        sequences at a time
    rounds:       how often both models are measured at all lengths, in turns
    attention_at: the hybrid's layers that are attention, counted from 0: (1, 7) as the paper has it for 12 layers, the
                  2nd and the (2 + 12/2)th; the released weights of this size have (6,)
    weights:      how both hold their matrices for the new tokens, "float32", "bfloat16", "int8" or "int4"; the prompt
                  is read in float32
    max_positions: rows of the Transformer's table of positions
    d_model, n_layers, n_heads, vocab_size: of both; d_state: of H3's systems
    """

    prompts: Distinct[Count] = (512, 1024, 1536)
    n_new: AtLeastTwo = 128
    batch: Count = 8
    rounds: Count = 9
    attention_at: tuple[Natural, ...] = (1, 7)
    weights: Annotated[str, OneOf(PRECISIONS)] = "float32"
    d_model: Count = 768
    n_layers: Depth = 12
    n_heads: Count = 12
    d_state: EvenCount = 64
    vocab_size: Count = 50_264
    max_positions: Count = 2048

    def __post_init__(self) -> None:
        longest = max(self.prompts) + self.n_new
        if longest > self.max_positions:
            raise ConfigError(
                f"a prompt of {max(self.prompts)} and n_new={self.n_new} make {longest} tokens, but max_positions="
                f"{self.max_positions}; use shorter prompts or a larger max_positions"
            )
        configs(self)  # refuses what does not fit together, positions of attention among it


def quick() -> H3ThroughputSettings:
    return H3ThroughputSettings(
        prompts=(64, 256),
        n_new=24,
        batch=4,
        rounds=3,
        attention_at=(1,),
        d_model=128,
        n_layers=4,
        n_heads=4,
        d_state=32,
        vocab_size=1024,
        max_positions=512,
    )


def configs(config: H3ThroughputSettings) -> dict[str, LanguageModelConfig]:
    """Both models, of one width and number of layers: GPT-2's layers, and of these all but a few with H3 in the place
    of attention. The Transformer has learned positions, and the hybrid none."""
    mlp = MLPConfig(expand=4, activation="gelu_tanh")
    mixer = AttentionConfig(n_heads=config.n_heads, positions=None, bias=True)
    attention = BlockConfig(mixer=mixer, mlp=mlp, norm="layer")
    h3 = BlockConfig(mixer=H3Config(d_state=config.d_state), mlp=mlp, norm="layer")
    mixer.head_width(config.d_model)
    shared: dict[str, Any] = {"vocab_size": config.vocab_size, "d_model": config.d_model, "norm": "layer"}
    hybrid = hybrid_layers(h3, attention, n_layers=config.n_layers, at=config.attention_at)
    return {
        TRANSFORMER: LanguageModelConfig(
            layers=(attention,) * config.n_layers, max_positions=config.max_positions, **shared
        ),
        HYBRID: LanguageModelConfig(layers=hybrid, **shared),
    }
