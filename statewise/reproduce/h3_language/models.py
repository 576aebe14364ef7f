"""The models of ``h3-language``, each with the number of parameters of the Transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import nn

from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig, build_norm
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

# Fu et al. 2023 (H3), arXiv:2212.14052, the table on OpenWebText: perplexity of models of about 125M parameters.
PUBLISHED = {"h3-hybrid": 19.6, "gss-hybrid": 19.8, "transformer": 20.6, "h3": 21.0, "gss": 24.0, "s4d": 24.9}
LABELS = {
    "h3-hybrid": "hybrid H3 (2 attention)",
    "gss-hybrid": "hybrid GSS (2 attention)",
    "transformer": "Transformer",
    "h3": "H3",
    "gss": "GSS",
    "s4d": "S4D",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "transformer-rotary": "Transformer, rotary",
}
USUAL = tuple(LABELS)[:8]  # without the last, which tells what of the Transformer's place its learned positions cost
WITHOUT_MLP = ("mamba", "mamba2")
HIDDEN_STEP = 8  # the width of an MLP is a multiple of it
MOST_LAYERS = 4  # times n_layers, for the models without an MLP


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What all of them follow from; see ``H3LanguageSettings`` for the fields."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_state: int
    length: int
    expand: float
    tolerance: float
    weight_std: float


@cache
def build_config(name: str, sizes: Sizes) -> LanguageModelConfig:
    """The model of this name whose number of parameters is nearest to the Transformer's.

    In the models with MLPs, the width of all MLPs is chosen, in steps of eight. Mamba and Mamba-2 come without: of them
    the number of layers and the width are, the former as near to twice ``n_layers`` as can be.

    Errors: ConfigError if none is within the tolerance.
    """
    target = n_parameters(_with_mlp("transformer", sizes, round(sizes.expand * sizes.d_model)))
    if name.startswith("transformer"):
        found = _with_mlp(name, sizes, round(sizes.expand * sizes.d_model))
    elif name in WITHOUT_MLP:
        found = _without_mlp(name, sizes, target)
    else:
        one, two = (n_parameters(_with_mlp(name, sizes, HIDDEN_STEP * i)) for i in (1, 2))
        steps = max(1, 1 + round((target - one) / (two - one)))
        found = _with_mlp(name, sizes, HIDDEN_STEP * steps)
    difference = n_parameters(found) / target - 1
    if abs(difference) > sizes.tolerance:
        raise ConfigError(
            f"{name} comes no closer than {difference:+.1%} to the Transformer's {target:,} parameters at d_model="
            f"{sizes.d_model}, n_layers={sizes.n_layers}, d_state={sizes.d_state}; change one of them, or the tolerance"
        )
    return found


def n_parameters(config: LanguageModelConfig) -> int:
    """Counts the model's parameters; only a block of each kind is built, without memory. A tied head counts once."""
    rows = config.vocab_size * (1 if config.tie_embeddings else 2) + (config.max_positions or 0)
    with torch.device("meta"):
        norm = 0 if config.norm is None else _count(build_norm(config.norm, config.d_model, config.norm_eps))
    return config.d_model * rows + norm + sum(_block_parameters(block, config.d_model) for block in config.blocks)


@cache
def _block_parameters(block: BlockConfig, d_model: int) -> int:
    with torch.device("meta"):
        return _count(block.build(d_model))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def attention_places(n_layers: int) -> tuple[int, int]:
    """The attention layers of a hybrid, as in the paper: layers 2 and 2 + n / 2, here counted from 0.

    >>> attention_places(12)
    (1, 7)
    """
    return 1, 1 + n_layers // 2


def kind_and_places(name: str, n_layers: int) -> tuple[str, tuple[int, ...]]:
    """The mixer of a name, and which layers are attention instead: those of the paper for a hybrid, or any behind "@".

    Errors:  ConfigError for a place beyond the last layer.

    >>> kind_and_places("h3-hybrid", 12), kind_and_places("gss@0+3", 8), kind_and_places("h3@none", 8)
    (('h3', (1, 7)), ('gss', (0, 3)), ('h3', ()))
    """
    if "@" not in name:
        kind = name.removesuffix("-hybrid")
        return kind, attention_places(n_layers) if kind != name else ()
    kind, text = name.split("@")
    words = [] if text == "none" else text.split("+")
    places = tuple(int(word) for word in words if word.isdecimal() and int(word) < n_layers)
    if len(places) < len(words) or len(set(places)) < len(places):
        raise ConfigError(
            f'the places {text!r} are unknown; expected layers from 0 to {n_layers - 1} as "1+5", or "none"'
        )
    return kind, places


def describe(name: str, config: LanguageModelConfig) -> str:
    """The sizes in a few words."""
    mlp = config.blocks[0].mlp
    hidden = "no MLP" if mlp is None else f"MLP {round(mlp.expand * config.d_model)}"
    return f"{len(config.layers)} x {config.d_model}, {hidden}"


def _with_mlp(name: str, sizes: Sizes, d_hidden: int) -> LanguageModelConfig:
    mlp = MLPConfig(expand=d_hidden / sizes.d_model, activation="gelu_tanh", weight_std=sizes.weight_std)

    def block(mixer: MixerConfig) -> BlockConfig:
        return BlockConfig(mixer=mixer, mlp=mlp, norm="layer")

    positions = "rotary" if name == "transformer-rotary" else None
    attention = block(
        AttentionConfig(n_heads=sizes.n_heads, positions=positions, bias=True, weight_std=sizes.weight_std)
    )
    kind, places = kind_and_places(name, sizes.n_layers)
    layer = attention if name.startswith("transformer") else block(MIXERS[kind](sizes))
    return LanguageModelConfig(
        vocab_size=sizes.vocab_size,
        d_model=sizes.d_model,
        layers=hybrid_layers(layer, attention, n_layers=sizes.n_layers, at=places),
        norm="layer",
        max_positions=sizes.length if name == "transformer" else None,
    )


def _without_mlp(name: str, sizes: Sizes, target: int) -> LanguageModelConfig:
    """Among the depths and widths within the tolerance, the one with the depth nearest to twice ``n_layers``."""
    mixer, usual = MIXERS[name](sizes), 2 * sizes.n_layers
    best: tuple[tuple[float, ...], LanguageModelConfig] | None = None
    for d_model in range(max(8, sizes.d_model // 16 * 8), 2 * sizes.d_model, 8):
        one = LanguageModelConfig(vocab_size=sizes.vocab_size, d_model=d_model, layers=(mixer,), norm="rms")
        first, each = n_parameters(one), n_parameters(replace(one, layers=(mixer,) * 2)) - n_parameters(one)
        depth = max(1, min(1 + round((target - first) / each), MOST_LAYERS * sizes.n_layers))
        difference = abs(first + (depth - 1) * each - target) / target
        badness = (float(abs(depth - usual)), difference) if difference <= sizes.tolerance else (1e9, difference)
        if best is None or badness < best[0]:
            best = badness, replace(one, layers=(mixer,) * depth)
    assert best is not None  # there is always the first width
    return best[1]


# The published defaults, but for sizes that belong to wide models: heads of 64 in Mamba-2, which has as many states as
# the others here.
MIXERS: dict[str, Callable[[Sizes], MixerConfig]] = {
    "h3": lambda sizes: H3Config(d_state=sizes.d_state, weight_std=sizes.weight_std),
    "gss": lambda sizes: GSSConfig(d_state=sizes.d_state),
    "s4d": lambda sizes: S4DConfig(d_state=sizes.d_state, initialization="lin"),
    "mamba": lambda sizes: MambaConfig(),
    "mamba2": lambda sizes: Mamba2Config(d_state=sizes.d_state, d_head=16),
}
