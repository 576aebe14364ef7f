"""What ``h3-throughput`` found: tokens a second beside the published ones, the two stages, the sizes of the states."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from statewise.reproduce.h3_throughput.settings import HYBRID, TRANSFORMER, H3ThroughputSettings
from statewise.reproduce.report import Bar, Report, doubling_axis, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fu et al. 2023 (H3), arXiv:2212.14052: tokens a second at 1.3 billion parameters, by the length of the prompt.
PUBLISHED = {512: (1340, 1980), 1024: (770, 1580), 1536: (520, 1240)}
PUBLISHED_BATCH = 64


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


def round_ratios(part: Mapping[str, Any]) -> list[float]:
    """The Transformer's seconds over H3's, of each round, in which both were measured one after the other."""
    seconds = [[sum(stages) for stages in part[name]["seconds"]] for name in (TRANSFORMER, HYBRID)]
    return [old / new for old, new in zip(*seconds)]


def _growth(found: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """In how many rounds H3 is further ahead after a longer prompt: what the medians alone do not say."""
    by_length = {length: round_ratios(found[length]) for length in sorted(found)}
    return tuple(
        f"Further ahead at {longer:,} than at {shorter:,} in "
        f"{sum(b > a for a, b in zip(by_length[shorter], by_length[longer]))} of {len(by_length[longer])} rounds."
        for shorter, longer in pairwise(by_length)
    )


def make_report(
    config: H3ThroughputSettings,
    found: Mapping[int, Mapping[str, Any]],
    parameters: Mapping[str, int],
    n_bytes: Mapping[str, Mapping[int, int]],
) -> Report:
    rows, stages, memory, figures, ratios = [], [], [], {}, {}
    for length, part in found.items():
        by_model = speeds(config, part)
        old, new = by_model[TRANSFORMER], by_model[HYBRID]
        in_rounds = round_ratios(part)
        ratio = ratios[length] = statistics.median(in_rounds)
        published = ("-", "-", "-")
        if length in PUBLISHED:
            a, b = PUBLISHED[length]
            published = (f"{a:,}", f"{b:,}", f"{b / a:.2f}x")
        speed = (f"{old['tokens_per_second']:,.1f}", f"{new['tokens_per_second']:,.1f}")
        ours = (*speed, f"{ratio:.2f}x", f"{min(in_rounds):.2f} to {max(in_rounds):.2f}")
        rows.append((f"{length:,}", *published, *ours))
        prefill = old["prefill_seconds"] / new["prefill_seconds"]
        decode = old["decode_seconds"] / new["decode_seconds"]
        pairs = [(f"{old[key]:.2f}", f"{new[key]:.2f}") for key in ("prefill_seconds", "decode_seconds")]
        stages.append((f"{length:,}", *pairs[0], f"{prefill:.2f}x", *pairs[1], f"{decode:.2f}x"))
        size = {name: n_bytes[name][length] for name in n_bytes}
        shares = [f"{size[name] / 1e6:,.1f}" for name in (TRANSFORMER, HYBRID)]
        batches = [f"{n * size[name] / 1e6:,.0f}" for n in (config.batch, PUBLISHED_BATCH) for name in size]
        memory.append((f"{length:,}", *shares, *batches))
        figures[str(length)] = {
            "ratio": ratio,
            "ratios": in_rounds,
            "prefill_ratio": prefill,
            "decode_ratio": decode,
            "models": by_model,
        }
        figures[str(length)]["state_bytes"] = size
    columns = (
        "prompt",
        "published Transformer",
        "published H3",
        "ratio",
        "Transformer, ours",
        "H3, ours",
        "ratio",
        "rounds",
    )
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
            f"token's logits made; the new tokens by {' or '.join(paths)}. In one process, all lengths and both "
            f"models in turns; medians of {config.rounds} rounds, the ratio of each round its own."
        ),
        tables=[
            Table("Tokens a second, the prompt's time included", columns, rows, _growth(found)),
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
