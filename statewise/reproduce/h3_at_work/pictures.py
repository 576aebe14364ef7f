"""The heat maps of H3 at work: signals over tokens, tables of keys and values, filters over lags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise.plots.lookup import TITLES, draw_signals
from statewise.plots.style import heat_map, line
from statewise.reproduce.h3_at_work.by_hand import KEYS, VALUES, Trace, lookup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_by_hand(drawing: Figure, found: Trace) -> None:
    pairs = [(k, v) for k in range(len(KEYS)) for v in range(len(VALUES)) if found.state[-1, k, v]]
    names = [KEYS[k] + VALUES[v] for k, v in pairs] or ["none"]
    chosen = torch.tensor(pairs or [(0, 0)]).T
    panels = [
        ("K", found.K, KEYS),
        ("V", found.V, VALUES),
        ("store the key: K' = shift(K)", found.shifted, KEYS),
        ("store the value: K'V enters the state", found.entering[:, chosen[0], chosen[1]], names),
        ("Q", found.Q, KEYS),
        ("state", found.state[:, chosen[0], chosen[1]], names),
        ("", None, ()),
        ("recall: Q reads the state", found.output, VALUES),
    ]
    for axes, (title, values, rows) in zip(drawing.subplots(4, 2).flat, panels):
        if values is None:
            axes.axis("off")
        else:
            heat_map(axes, values.T, title, columns=found.text, rows=rows, limit=1.0)


def draw_lookup(drawing: Figure, key: Tensor, value: Tensor) -> None:
    panels = drawing.subplots(1, 3, width_ratios=[3, 2, 2])
    heat_map(panels[0], torch.outer(key, value), "K'V: V in the row of K'", rows=[f"{x:g}" for x in key], limit=1.0)
    panels[0].set_xticks([])
    for axes, query, title in (
        (panels[1], key, "Q = K' reads V"),
        (panels[2], key.roll(-1), "Q orthogonal to K' reads nothing"),
    ):
        heat_map(axes, lookup(key, value, query)[None], limit=1.0)
        axes.set_title(title, fontsize=8)
        axes.set(xticks=[], yticks=[])


def draw_trained(drawing: Figure, example: Mapping[str, Any]) -> None:
    heads = [str(head) for head in example["heads"]]
    table = {name: torch.tensor(example[name]) for name in TITLES}
    draw_signals(drawing, table, example["tokens"], heads)


def draw_reads(drawing: Figure, table: Sequence[Sequence[float]], keys: Sequence[str]) -> None:
    heat_map(drawing.subplots(), table, "", columns=keys, rows=keys)
    drawing.gca().set(xlabel="key of the pair", ylabel="key that asks")


def draw_filters(drawing: Figure, found: Mapping[str, Any]) -> None:
    filters, heads = found["filters"], [str(head) for head in found["example"]["heads"]]
    left, right = drawing.subplots(1, 2)
    taps = torch.tensor(filters["shift"])
    lags = [str(i) if i % 2 == 0 else "" for i in range(taps.shape[1])]
    scaled = taps / taps.abs().amax(1, keepdim=True).clamp(min=1e-9)
    heat_map(left, scaled, "shift SSM: taps by lag", columns=lags, rows=heads, limit=1.0)
    for number, (head, response) in enumerate(zip(heads, filters["diagonal"])):
        size = torch.tensor(response).abs()
        right.semilogy(size / size.max().clamp(min=1e-30), label=head, **{**line(number), "linewidth": 1})
    right.set_title("diagonal SSM: |tap|, relative to the largest", fontsize=9)
    right.set_xlabel("lag")
    right.set_ylim(1e-3, 1.5)
    right.legend(title="head", fontsize=7)
