"""Hybrid H3 beside a Transformer with its key-value history: tokens a second, prompt and new tokens together."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.decoding import Decoder, why_not
from statewise.generation import generate
from statewise.mixers.attention_state import AttentionState
from statewise.models.freezing import freeze
from statewise.models.language_model import LanguageModel
from statewise.reproduce.h3_throughput.report import make_report
from statewise.reproduce.h3_throughput.settings import H3ThroughputSettings, configs, quick
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.work import Work


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
    duration="20 minutes",
    full=H3ThroughputSettings,
    quick=quick,
    run=run,
)
