"""Hybrid H3 beside a Transformer with its key-value history: tokens a second, prompt and new tokens together."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.decoding import PRECISIONS, Decoder, why_not
from statewise.errors import ConfigError
from statewise.generate import generate
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.attention_state import AttentionState
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.freezing import freeze
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.h3_throughput.report import HYBRID, TRANSFORMER, make_report
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.work import Work


@dataclass(frozen=True, kw_only=True)
class H3ThroughputSettings:
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

    prompts: tuple[int, ...] = (512, 1024, 1536)
    n_new: int = 128
    batch: int = 8
    rounds: int = 5
    attention_at: tuple[int, ...] = (1, 7)
    weights: str = "float32"
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_state: int = 64
    vocab_size: int = 50_264
    max_positions: int = 2048

    def __post_init__(self) -> None:
        counts = ("batch", "rounds", "d_model", "n_layers", "n_heads", "vocab_size", "max_positions")
        least = {**dict.fromkeys(counts, 1), "n_new": 2}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"H3ThroughputSettings.{name}={getattr(self, name)}; use at least {low}")
        if not self.prompts or min(self.prompts) < 1 or len(set(self.prompts)) < len(self.prompts):
            raise ConfigError(f"H3ThroughputSettings.prompts={self.prompts}; give lengths of at least 1, each once")
        longest = max(self.prompts) + self.n_new
        if longest > self.max_positions:
            raise ConfigError(
                f"a prompt of {max(self.prompts)} and n_new={self.n_new} make {longest} tokens, but max_positions="
                f"{self.max_positions}; use shorter prompts or a larger max_positions"
            )
        if self.weights not in PRECISIONS:
            raise ConfigError(f"H3ThroughputSettings.weights={self.weights!r}; use one of {', '.join(PRECISIONS)}")
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


class Generator:
    """A model ready to generate greedily: its operators are discretised, its weights packed for decoding once."""

    def __init__(self, model: LanguageModel, weights: str = "float32") -> None:
        self.model: LanguageModel = freeze(model)
        self.weights: str | Decoder | None = Decoder(self.model, weights) if why_not(self.model) is None else None
        if self.weights is None and weights != "float32":
            self.weights = weights
        self.seconds: list[tuple[float, float]] = []  # of each call: until the first new token, and from there on

    @property
    def path(self) -> str:
        """How it decodes."""
        return "one call of C for each token" if isinstance(self.weights, Decoder) else "PyTorch"

    def __call__(self, prompt: Tensor, n_new: int) -> Tensor:
        """(batch, length) -> the new tokens (batch, n_new)"""
        begun = time.perf_counter()
        tokens = generate(
            self.model,
            prompt,
            max_new_tokens=n_new,
            temperature=0.0,
            seed=0,
            stop_at_document=False,
            weights=self.weights,
        )
        ids = [next(tokens).ids]
        first = time.perf_counter()
        ids += [token.ids for token in tokens]
        self.seconds.append((first - begun, time.perf_counter() - first))
        return torch.stack(ids, 1)


def state_bytes(model: LanguageModel, length: int) -> int:
    """Of one sequence after ``length`` tokens: all of a state of fixed size, and of a history what is in use."""
    total = 0
    for block in model.blocks:
        state = block.initial_state(1, device="cpu")
        total += sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
        if isinstance(state, AttentionState):
            total += 2 * length * state.keys.shape[2] * state.keys.shape[3] * state.keys.element_size()
    return total


def run(config: H3ThroughputSettings, work: Work) -> Report:
    with torch.device("meta"):
        sizes = {name: model.build() for name, model in configs(config).items()}
    _require_room(config, sizes)
    work.begin(config.rounds)
    generators: dict[str, Generator] = {}  # made when the first round is measured, if one is
    rounds = [work.part(f"round-{i + 1}", partial(_measure, config, work, i, generators)) for i in range(config.rounds)]
    found = {
        n: {
            name: {"seconds": [one["seconds"][str(n)][name] for one in rounds], "path": rounds[-1]["paths"][name]}
            for name in sizes
        }
        for n in config.prompts
    }
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in sizes.items()}
    n_bytes = {name: {n: state_bytes(model, n + config.n_new) for n in config.prompts} for name, model in sizes.items()}
    return make_report(config, found, parameters, n_bytes)


def _require_room(config: H3ThroughputSettings, sizes: Mapping[str, LanguageModel]) -> None:
    """Weights twice (the model's and the decoder's), histories in buffers that double, a layer's activations."""
    longest = max(config.prompts)
    weights = sum(2 * 4 * p.numel() for model in sizes.values() for p in model.parameters())
    states = max(2 * state_bytes(model, longest + config.n_new) for model in sizes.values())
    activations = 4 * longest * 16 * config.d_model
    require_memory(
        weights + config.batch * (states + activations),
        f"generating {config.batch} sequences at a time with prompts of {longest}",
        "use a smaller batch, as in --set batch=2",
    )


def _measure(config: H3ThroughputSettings, work: Work, i: int, generators: dict[str, Generator]) -> dict[str, Any]:
    """Both models once after each prompt, shortest first or last, so that what slows the machine slows all alike."""
    g = torch.Generator().manual_seed(1)
    prompts = {n: torch.randint(config.vocab_size, (config.batch, n), generator=g) for n in config.prompts}
    if not generators:
        torch.manual_seed(0)
        generators |= {name: Generator(model.build(), config.weights) for name, model in configs(config).items()}
        for generator, prompt in product(generators.values(), prompts.values()):
            generator(prompt, min(3, config.n_new))  # what is done only once
    calls = list(product(prompts, generators))
    seconds: dict[str, dict[str, tuple[float, float]]] = {str(n): {} for n in prompts}
    for done, (n, name) in enumerate(calls if i % 2 == 0 else reversed(calls)):
        gc.collect()  # not in the middle of a call
        generators[name](prompts[n], config.n_new)
        seconds[str(n)][name] = generators[name].seconds[-1]
        work.progress(done + 1, len(calls))
    return {"seconds": seconds, "paths": {name: generator.path for name, generator in generators.items()}}


REPRODUCTION = Reproduction(
    summary="generating with hybrid H3 beside a Transformer, after prompts of 512, 1,024 and 1,536 tokens",
    duration="10 minutes",
    full=H3ThroughputSettings,
    quick=quick,
    run=run,
)
