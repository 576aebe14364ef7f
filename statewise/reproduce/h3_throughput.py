"""Hybrid H3 beside a Transformer with its key-value history: tokens a second, prompt and new tokens together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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
from statewise.reproduce.hardware import require_memory
from statewise.reproduce.measure import time_side_by_side
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Bar, Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fu et al. 2023 (H3), arXiv:2212.14052: tokens a second at 1.3 billion parameters, by the length of the prompt.
PUBLISHED = {512: (1340, 1980), 1024: (770, 1580), 1536: (520, 1240)}
PUBLISHED_BATCH = 64
TRANSFORMER, HYBRID = "Transformer", "H3 hybrid"


@dataclass(frozen=True, kw_only=True)
class H3ThroughputSettings:
    """prompts:      lengths of the prompts, in tokens; n_new: tokens that are generated after each
    batch:        sequences at a time
    rounds:       how often both models are measured in turn, at each length
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
    work.begin(len(config.prompts))
    found = {n: work.part(f"prompt-{n}", partial(_measure, config, work, n)) for n in config.prompts}
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in sizes.items()}
    n_bytes = {name: {n: state_bytes(model, n + config.n_new) for n in config.prompts} for name, model in sizes.items()}
    return _report(config, found, parameters, n_bytes)


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


def _measure(config: H3ThroughputSettings, work: Work, length: int) -> dict[str, Any]:
    torch.manual_seed(0)
    models = {name: Generator(model.build(), config.weights) for name, model in configs(config).items()}
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(config.vocab_size, (config.batch, length), generator=generator)
    total = config.rounds + 1
    for model in models.values():
        model(prompt, min(3, config.n_new))  # what is done only once
        model.seconds.clear()
    work.progress(1, total)
    time_side_by_side(
        {name: partial(model, prompt, config.n_new) for name, model in models.items()},
        config.rounds,
        progress=lambda done, _: work.progress(done + 1, total),
    )
    return {name: {"seconds": model.seconds, "path": model.path} for name, model in models.items()}


def speeds(config: H3ThroughputSettings, part: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Medians over the rounds, of each model: seconds of the prompt, of the new tokens and of both together, tokens a
    second of all (as published) and while generating alone, and the spread of the first, smallest and largest round."""
    out: dict[str, dict[str, Any]] = {}
    for name in (TRANSFORMER, HYBRID):
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


def _report(
    config: H3ThroughputSettings,
    found: Mapping[int, Mapping[str, Any]],
    parameters: Mapping[str, int],
    n_bytes: Mapping[str, Mapping[int, int]],
) -> Report:
    rows, stages, memory, figures, ratios = [], [], [], {}, {}
    for length, part in found.items():
        by_model = speeds(config, part)
        old, new = by_model[TRANSFORMER], by_model[HYBRID]
        ratio = ratios[length] = new["tokens_per_second"] / old["tokens_per_second"]
        published = ("-", "-", "-")
        if length in PUBLISHED:
            a, b = PUBLISHED[length]
            published = (f"{a:,}", f"{b:,}", f"{b / a:.2f}x")
        ours = (f"{old['tokens_per_second']:,.1f}", f"{new['tokens_per_second']:,.1f}", f"{ratio:.2f}x")
        rows.append((f"{length:,}", *published, *ours))
        prefill = old["prefill_seconds"] / new["prefill_seconds"]
        decode = old["decode_seconds"] / new["decode_seconds"]
        pairs = [(f"{old[key]:.2f}", f"{new[key]:.2f}") for key in ("prefill_seconds", "decode_seconds")]
        stages.append((f"{length:,}", *pairs[0], f"{prefill:.2f}x", *pairs[1], f"{decode:.2f}x"))
        size = {name: n_bytes[name][length] for name in n_bytes}
        shares = [f"{size[name] / 1e6:,.1f}" for name in (TRANSFORMER, HYBRID)]
        batches = [f"{n * size[name] / 1e6:,.0f}" for n in (config.batch, PUBLISHED_BATCH) for name in size]
        memory.append((f"{length:,}", *shares, *batches))
        figures[str(length)] = {"ratio": ratio, "prefill_ratio": prefill, "decode_ratio": decode, "models": by_model}
        figures[str(length)]["state_bytes"] = size
    columns = ("prompt", "published Transformer", "published H3", "ratio", "Transformer, ours", "H3, ours", "ratio")
    paths = sorted({part[name]["path"] for part in found.values() for name in (TRANSFORMER, HYBRID)})
    threads = torch.get_num_threads()
    return Report(
        title="Hybrid H3 beside a Transformer: generating",
        setting=(
            f"{config.batch} sequences at a time, {config.n_new} new tokens each, greedily, with random weights in "
            f"{config.weights}, on the CPU with {threads} threads. Width {config.d_model}, {config.n_layers} layers, "
            f"MLPs of 4 times the width. Transformer: {parameters[TRANSFORMER]:,} parameters, learned positions, the "
            f"keys and values of all tokens so far kept. Hybrid: {parameters[HYBRID]:,} parameters, attention in the "
            f"layers {config.attention_at} counted from 0, H3 with {config.d_state} numbers for each channel in the "
            f"others. Both through one engine: the prompt by the model's own forward with its state, only the last "
            f"token's logits made; the new tokens by {' or '.join(paths)}. In one process, in turns; medians of "
            f"{config.rounds} rounds."
        ),
        tables=[
            Table("Tokens a second, the prompt's time included", columns, rows),
            Table(
                "Seconds for the prompt (until the first new token), and for the tokens after it",
                ("prompt", "Transformer", "H3", "ratio", "Transformer, decoding", "H3, decoding", "ratio"),
                stages,
            ),
            Table(
                "Megabytes of the states at the end: of one sequence, of this batch, and of the published one",
                (
                    "prompt",
                    *("Transformer", "H3"),
                    *(f"{name}, batch {n}" for n in (config.batch, PUBLISHED_BATCH) for name in ("Transformer", "H3")),
                ),
                memory,
            ),
        ],
        bars=_bars(config, ratios),
        differences=(
            "Published on an A100 with 80 GB, in float16, at 1.3 billion parameters (24 layers of width 2,048) and a "
            f"batch of {PUBLISHED_BATCH}, against the Transformer of another library. Here both models run in this "
            "package, on a CPU, at a size and batch that fit it.",
            "An accelerator reads a prompt nearly for free and spends its time on the tokens after it; on a CPU the "
            "prompt's matrix products, which both models share, are most of the time, and pull the ratio of the whole "
            "towards 1. The second table has both stages apart.",
            "The Transformer's attention is fused here, and its history is written in place.",
        ),
        figures={"by_prompt": figures, "parameters": dict(parameters), "parts": {str(n): p for n, p in found.items()}},
        plots=[drawn("h3-throughput", "Generating", partial(_draw, figures=figures), width=8.5, height=4.0)],
    )


def _bars(config: H3ThroughputSettings, ratios: Mapping[int, float]) -> list[Bar]:
    """Of the full setting: ahead everywhere, and further ahead as prompts grow."""
    if (config.d_model, config.n_layers) != (768, 12) or set(config.prompts) != set(PUBLISHED):
        return []
    lengths = sorted(ratios)
    ahead = [
        Bar(what=f"hybrid H3 faster at a prompt of {n:,}", ours=ratios[n], bar=1.0, beyond=True, unit="x")
        for n in lengths
    ]
    further = [
        Bar(what=f"further ahead at {n:,} than at {m:,}", ours=ratios[n], bar=ratios[m], beyond=True, unit="x")
        for m, n in pairwise(lengths)
    ]
    return ahead + further


def _draw(drawing: Figure, figures: Mapping[str, Any]) -> None:
    panels = drawing.subplots(1, 2)
    lengths = [int(length) for length in figures]
    for name in (TRANSFORMER, HYBRID):
        found = [figures[str(n)]["models"][name] for n in lengths]
        middle = [part["tokens_per_second"] for part in found]
        below = [value - part["range"][0] for value, part in zip(middle, found)]
        above = [part["range"][1] - value for value, part in zip(middle, found)]
        panels[0].errorbar(lengths, middle, yerr=(below, above), marker="o", capsize=3, label=name)
    panels[0].set_ylim(bottom=0)
    panels[0].set_title("tokens a second, bars from slowest to fastest round", fontsize=10)
    for key, label in (("ratio", "all"), ("prefill_ratio", "prompt"), ("decode_ratio", "decoding")):
        panels[1].plot(lengths, [figures[str(n)][key] for n in lengths], marker="o", label=f"ours, {label}")
    known = [n for n in lengths if n in PUBLISHED]
    if known:
        panels[1].plot(known, [PUBLISHED[n][1] / PUBLISHED[n][0] for n in known], "k--", marker="x", label="published")
    panels[1].axhline(1.0, color="grey", linewidth=0.8)
    panels[1].set_title("times as fast as the Transformer", fontsize=10)
    for axes in panels:
        doubling_axis(axes, lengths, "prompt")
        axes.legend(fontsize=8)


REPRODUCTION = Reproduction(
    summary="generating with hybrid H3 beside a Transformer, after prompts of 512, 1,024 and 1,536 tokens",
    duration="10 minutes",
    full=H3ThroughputSettings,
    quick=quick,
    run=run,
)
