"""Hybrid H3 beside a Transformer with its key-value history: tokens a second, prompt and new tokens together."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.configuration.types import AtLeastTwo, Count, Depth, Distinct, EvenWidth, Natural, OneOf, Width
from statewise.decoding import PRECISIONS, Decoder, why_not
from statewise.generation import generate
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.attention_state import AttentionState
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.freezing import freeze
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Bar, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.report import Reporter

# Fu et al. 2023 (H3), arXiv:2212.14052: tokens a second at 1.3 billion parameters, by the length of the prompt.
PUBLISHED = {512: (1340, 1980), 1024: (770, 1580), 1536: (520, 1240)}
PUBLISHED_BATCH = 64
TRANSFORMER, HYBRID = "Transformer", "H3 hybrid"
BOTH = (TRANSFORMER, HYBRID)


@dataclass(frozen=True, kw_only=True)
class H3ThroughputSettings(Settings):
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
    d_model: Width = 768
    n_layers: Depth = 12
    n_heads: Width = 12
    d_state: EvenWidth = 64
    vocab_size: Width = 50_264
    max_positions: Width = 2048

    def check(self) -> None:
        longest = max(self.prompts) + self.n_new
        self.require(
            longest <= self.max_positions,
            f"a prompt of {max(self.prompts)} and n_new={self.n_new} make {longest} tokens, but max_positions="
            f"{self.max_positions}; use shorter prompts or a larger max_positions",
        )
        configs(self)  # refuses what does not fit together, positions of attention among it


def configs(config: H3ThroughputSettings) -> dict[str, LanguageModelConfig]:
    """Both models, of one width and number of layers: GPT-2's layers, and the same with H3 instead of attention in all
    but a few. The Transformer has learned positions, the hybrid has none."""
    mlp = MLPConfig(expand=4, activation="gelu_tanh")
    mixer = AttentionConfig(n_heads=config.n_heads, positions=None, bias=True)
    attention = BlockConfig(mixer=mixer, mlp=mlp, norm="layer")
    h3 = BlockConfig(mixer=H3Config(d_state=config.d_state), mlp=mlp, norm="layer")
    mixer.head_width(config.d_model)
    shared: dict[str, Any] = {"vocab_size": config.vocab_size, "d_model": config.d_model, "norm": "layer"}
    layers = (attention,) * config.n_layers
    hybrid = hybrid_layers(h3, attention, n_layers=config.n_layers, at=config.attention_at)
    return {
        TRANSFORMER: LanguageModelConfig(layers=layers, max_positions=config.max_positions, **shared),
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
        options: dict[str, Any] = {"temperature": 0.0, "seed": 0, "stop_at_document": False, "weights": self.weights}
        begun = time.perf_counter()
        tokens = generate(self.model, prompt, max_new_tokens=n_new, **options)
        ids = [next(tokens).ids]
        first = time.perf_counter()
        ids += [token.ids for token in tokens]
        self.seconds.append((first - begun, time.perf_counter() - first))
        return torch.stack(ids, 1)


def state_bytes(model: LanguageModel, length: int) -> int:
    """The bytes of one sequence's state after ``length`` tokens: all of a state of fixed size, the used part of a
    history.
    """
    total = 0
    for block in model.blocks:
        state = block.initial_state(1, device="cpu")
        total += sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
        if isinstance(state, AttentionState):
            total += 2 * length * state.keys.shape[2] * state.keys.shape[3] * state.keys.element_size()
    return total


def _sizes(config: H3ThroughputSettings) -> dict[str, LanguageModel]:
    """Both models, without memory."""
    with torch.device("meta"):
        return {name: model.build() for name, model in configs(config).items()}


def trials(config: H3ThroughputSettings, work: Work) -> dict[str, Job]:
    """Rounds. What is needed: weights twice (the model's and the decoder's), histories in buffers that double, a
    layer's activations."""
    sizes, longest = _sizes(config).values(), max(config.prompts)
    weights = sum(2 * 4 * p.numel() for model in sizes for p in model.parameters())
    states = max(2 * state_bytes(model, longest + config.n_new) for model in sizes)
    require_memory(
        weights + config.batch * (states + 4 * longest * 16 * config.d_model),
        f"generating {config.batch} sequences at a time with prompts of {longest}",
        "use a smaller batch, as in --set batch=2",
    )
    _generators.cache_clear()
    return {f"round-{i + 1}": Job(measure_round, (config, i)) for i in range(config.rounds)}


@lru_cache(maxsize=1)
def _generators(config: H3ThroughputSettings) -> dict[str, Generator]:
    """Made when the first round is measured, and called once after each prompt, for what is done only once."""
    torch.manual_seed(0)
    made = {name: Generator(model.build(), config.weights) for name, model in configs(config).items()}
    for generator, prompt in product(made.values(), _prompts(config).values()):
        generator(prompt, min(3, config.n_new))
    return made


def _prompts(config: H3ThroughputSettings) -> dict[int, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {n: torch.randint(config.vocab_size, (config.batch, n), generator=g) for n in config.prompts}


def measure_round(config: H3ThroughputSettings, i: int, reporter: Reporter) -> dict[str, Any]:
    """Both models once after each prompt, shortest first or last, so that what slows the machine slows all alike."""
    prompts, generators = _prompts(config), _generators(config)
    calls = list(product(prompts, generators))
    seconds: dict[str, dict[str, tuple[float, float]]] = {str(n): {} for n in prompts}
    for done, (n, name) in enumerate(calls if i % 2 == 0 else reversed(calls)):
        gc.collect()  # not in the middle of a call
        generators[name](prompts[n], config.n_new)
        seconds[str(n)][name] = generators[name].seconds[-1]
        reporter.progress((done + 1) / len(calls), {})
    return {"seconds": seconds, "paths": {name: generator.path for name, generator in generators.items()}}


def speeds(config: H3ThroughputSettings, part: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Medians over the rounds, of each model: seconds of the prompt, of the new tokens and of both together, tokens a
    second of all (as published) and while generating alone, and the spread of the first, smallest and largest round."""
    out: dict[str, dict[str, Any]] = {}
    for name in BOTH:
        prefill, decode = zip(*part[name]["seconds"])
        together = [a + b for a, b in zip(prefill, decode)]
        n_tokens = config.batch * config.n_new
        out[name] = {
            "prefill_seconds": statistics.median(prefill),
            "decode_seconds": statistics.median(decode),
            "seconds": statistics.median(together),
            "tokens_per_second": n_tokens / statistics.median(together),
            "decode_tokens_per_second": config.batch * (config.n_new - 1) / statistics.median(decode),
            "range": [n_tokens / max(together), n_tokens / min(together)],
        }
    return out


def report(config: H3ThroughputSettings, found: Found) -> Report:
    rounds, sizes = [*found.values()], _sizes(config)
    paths, parts, figures, ratios = rounds[-1]["paths"], {}, {}, {}
    for n in config.prompts:
        part = {m: {"seconds": [one["seconds"][str(n)][m] for one in rounds], "path": paths[m]} for m in BOTH}
        old, new = (by_model := speeds(config, part)).values()
        totals = [[sum(stages) for stages in part[name]["seconds"]] for name in BOTH]
        ratios[n] = [ours / theirs for ours, theirs in zip(*totals)]  # of each round, one after the other
        parts[str(n)] = part
        figures[str(n)] = {
            "ratio": statistics.median(ratios[n]),
            "ratios": ratios[n],
            "prefill_ratio": old["prefill_seconds"] / new["prefill_seconds"],
            "decode_ratio": old["decode_seconds"] / new["decode_seconds"],
            "models": by_model,
            "state_bytes": {name: state_bytes(model, n + config.n_new) for name, model in sizes.items()},
        }
    bars = []  # of the full setting: ahead everywhere, and further ahead as prompts grow
    if (config.d_model, config.n_layers) == (768, 12) and set(config.prompts) == set(PUBLISHED):
        middle = {n: statistics.median(values) for n, values in sorted(ratios.items())}
        asked = [(f"hybrid H3 faster at a prompt of {n:,}", ratio, 1.0) for n, ratio in middle.items()]
        asked += [(f"further ahead at {n:,} than at {m:,}", middle[n], middle[m]) for m, n in pairwise(middle)]
        bars = [Bar(what=what, ours=ours, bar=bar, beyond=True, unit="x") for what, ours, bar in asked]
    growth = [
        f"Further ahead at {n:,} than at {m:,} in {sum(b > a for a, b in zip(ratios[m], ratios[n]))} of "
        f"{config.rounds} rounds."
        for m, n in pairwise(sorted(ratios))
    ]
    rows = [_row(config, n, figures[str(n)]) for n in config.prompts]
    parameters = {name: n_parameters(model) for name, model in configs(config).items()}
    return told(
        "h3-throughput",
        {
            **vars(config),
            "threads": torch.get_num_threads(),
            "parameters": parameters,
            "paths": " or ".join(sorted({*paths.values()})),
            "growth": growth,
        },
        rows,
        rows,
        rows,
        bars=bars,
        figures={"by_prompt": figures, "parameters": parameters, "parts": parts},
        plots=[curves("h3-throughput", "Generating", *_panels(figures), width=8.5, height=4.0)],
    )


def _row(config: H3ThroughputSettings, n: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the tables."""
    theirs, (old, new) = PUBLISHED.get(n), found["models"].values()
    row = {**found, "n": n, "theirs": theirs, "their_ratio": theirs and theirs[1] / theirs[0], "old": old, "new": new}
    row |= {"least": min(found["ratios"]), "most": max(found["ratios"])}
    for name, batch in (("one", 1), ("here", config.batch), ("there", PUBLISHED_BATCH)):
        row[name] = [batch * n_bytes / 1e6 for n_bytes in found["state_bytes"].values()]
    return row


def _panels(figures: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    lengths = [int(length) for length in figures]
    bars, lines = [], []
    for name in BOTH:
        parts = [found["models"][name] for found in figures.values()]
        middle = [part["tokens_per_second"] for part in parts]
        below = [value - part["range"][0] for value, part in zip(middle, parts)]
        above = [part["range"][1] - value for value, part in zip(middle, parts)]
        bars.append(Curve(lengths, middle, name, {"yerr": (below, above), "marker": "o", "capsize": 3}))
    for key, label in (("ratio", "all"), ("prefill_ratio", "prompt"), ("decode_ratio", "decoding")):
        lines.append(Curve(lengths, [found[key] for found in figures.values()], f"ours, {label}", MARKED))
    known = [n for n in lengths if n in PUBLISHED]
    theirs = [PUBLISHED[n][1] / PUBLISHED[n][0] for n in known]
    lines += [Curve(known, theirs, "published", {"marker": "x", "ls": "--", "color": "k"})] if known else []
    title = "tokens a second, bars from slowest to fastest round"
    times = "times as fast as the Transformer"
    return [
        Panel(bars, title=title, x="prompt", ticks=lengths, set={"ylim": (0, None)}),
        Panel(lines, title=times, x="prompt", ticks=lengths, levels=[(1.0, {"color": "grey"})]),
    ]


CLAIM = Claim(
    summary="generating with hybrid H3 beside a Transformer, after prompts of 512, 1,024 and 1,536 tokens",
    duration="20 minutes",
    source="Fu et al. 2023 (H3), arXiv:2212.14052",
    settings=H3ThroughputSettings,
    quick="prompts=[64,256] n_new=24 batch=4 rounds=3 attention_at=[1] d_model=128 n_layers=4 n_heads=4 d_state=32 "
    "vocab_size=1024 max_positions=512",
    trials=trials,
    report=report,
)
