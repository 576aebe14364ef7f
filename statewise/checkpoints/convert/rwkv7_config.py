"""What RWKV-7's formats have in common: the config that sizes give, and what models it has to be of.

Each of their layers is two of ours: time mixing and channel mixing, in blocks without MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statewise.checkpoints.convert.hybrids.canonical import essential, explicit
from statewise.checkpoints.differences import differences
from statewise.errors import CheckpointError, ConfigError, retold
from statewise.mixers.channel_mix import ChannelMixConfig
from statewise.mixers.rwkv7 import RWKV7Config
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig

NETS = {"w": "decay_net", "a": "rate_net", "v": "value_net", "g": "gate_net"}  # small networks, by their letters
VECTORS = {"k_k": "xi", "k_a": "alpha"}
HEAD_NORM_EPS = 64e-5  # of BlinkDL's norm of the heads, whatever their width is


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """ranks: of the small networks by their letters; value_rank: of "v", None where there is one layer. head_eps: what
    the norm of the heads adds to a variance; None: norm_eps times their width. embedding_norm: whether there is one."""

    vocab_size: int
    d_model: int
    n_layers: int
    d_head: int
    d_hidden: int
    ranks: Mapping[str, int]
    value_rank: int | None
    norm_eps: float
    head_eps: float | None
    embedding_norm: bool
    tied: bool

    def config(self, where: str) -> LanguageModelConfig:
        """Errors:  CheckpointError for sizes that do not fit each other."""
        ranks = {name: self.ranks[letter] for name, letter in (("decay", "w"), ("rate", "a"), ("gate", "g"))}
        eps = self.norm_eps if self.head_eps is None else self.head_eps / self.d_head
        with retold(CheckpointError, ConfigError, where=f"{where}: "):
            fields: dict[str, Any] = {f"{name}_rank": rank for name, rank in ranks.items()}
            time = [
                RWKV7Config(d_head=self.d_head, value_rank=rank, norm_eps=eps, **fields)
                for rank in (None, self.value_rank)
            ]
            channels = ChannelMixConfig(expand=self.d_hidden / self.d_model)
            mixers = [mixer for i in range(self.n_layers) for mixer in (time[min(i, 1)], channels)]
            return LanguageModelConfig(
                vocab_size=self.vocab_size,
                d_model=self.d_model,
                layers=tuple(BlockConfig(mixer=mixer, norm="layer", norm_eps=self.norm_eps) for mixer in mixers),
                norm="layer",
                norm_eps=self.norm_eps,
                embedding_norm="layer" if self.embedding_norm else None,
                tie_embeddings=self.tied,
            )


def sizes_of(config: LanguageModelConfig) -> Sizes:
    """The sizes of a model whose layers are :func:`in_turn`."""
    time, channels, last = config.blocks[0].mixer, config.blocks[1].mixer, config.blocks[-2].mixer
    assert isinstance(time, RWKV7Config)
    assert isinstance(last, RWKV7Config)
    assert isinstance(channels, ChannelMixConfig)
    return Sizes(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        n_layers=len(config.layers) // 2,
        d_head=time.d_head,
        d_hidden=channels.hidden_width(config.d_model),
        ranks={"w": time.decay_rank, "a": time.rate_rank, "g": time.gate_rank},
        value_rank=last.value_rank,
        norm_eps=config.norm_eps,
        head_eps=time.d_head * time.norm_eps,
        embedding_norm=config.embedding_norm is not None,
        tied=config.tie_embeddings,
    )


def in_turn(config: ModelConfig, what: str) -> LanguageModelConfig:
    """The config; CheckpointError unless its layers are of time and channel mixing in turn."""
    if not isinstance(config, LanguageModelConfig):
        raise CheckpointError(f"{what} has no {type(config).__name__.removesuffix('Config')}, only language models")
    kinds = (RWKV7Config, ChannelMixConfig)
    for i, block in enumerate(config.blocks):
        if type(block.mixer) is not kinds[i % 2]:
            wanted = kinds[i % 2].__name__
            raise CheckpointError(f"{what} has time and channel mixing in turn, and layers[{i}] is not {wanted}")
    if len(config.layers) % 2:
        raise CheckpointError(f"{what} has channel mixing behind every time mixing; the last layer has none")
    return config


def require_same(again: LanguageModelConfig, config: LanguageModelConfig, what: str) -> None:
    """CheckpointError for what a file that was written does not say as the config does."""
    for difference in differences(*(essential(explicit(c.in_full(), c.d_model)) for c in (again, config))):
        raise CheckpointError(f"{what} does not have this model: {difference}")
