"""H3 beside S4D in speed: a training step of one layer of each, and where its time goes.

    python experiments/h3_beside_s4d.py --output h3_beside_s4d.json        # two minutes

Both have the same width, N = 64 and one batch. Times are medians of calls in turns, in one process. The shares are
those of PyTorch's profiler over one step: products are the layer's linear maps, convolutions its FFTs, the rest what is
between.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import statewise as sw
from statewise.reproduce.hardware import measured
from statewise.reproduce.measure import milliseconds, time_side_by_side

LAYERS = {
    "S4D": sw.S4DConfig(d_state=64),
    "H3, heads of 1": sw.H3Config(d_state=64, d_head=1),
    "H3, heads of 8": sw.H3Config(d_state=64, d_head=8),
}
PARTS = {
    "products": "statewise::linear",
    "convolutions": "statewise::fft_convolution",
    "filters": "statewise::vandermonde",
}


def step(layer: torch.nn.Module, x: torch.Tensor) -> None:
    layer.zero_grad()
    y, _ = layer(x)
    y.sum().backward()


def shares(layer: torch.nn.Module, x: torch.Tensor) -> dict[str, float]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(layer, x)
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(times.values())
    found = {part: sum(t for key, t in times.items() if key.startswith(name)) / total for part, name in PARTS.items()}
    return {**found, "rest": 1 - sum(found.values())}


def at_length(length: int, batch: int, width: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = {name: config.build(width) for name, config in LAYERS.items()}
    x = torch.randn(batch, length, width)
    actions = {name: partial(step, layer, x) for name, layer in layers.items()}
    for action in actions.values():
        action()
    ms = {name: milliseconds(seconds) for name, seconds in time_side_by_side(actions, rounds).items()}
    return {
        "length": length,
        "batch": batch,
        "ms": ms,
        "of_s4d": {name: found / ms["S4D"] for name, found in ms.items()},
        "shares": {name: shares(layer, x) for name, layer in layers.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()

    def figures() -> dict[str, Any]:
        sizes = ((1024, 1), (1024, 8), (4096, 2))
        return {"width": given.width, "rows": [at_length(*size, given.width, given.rounds) for size in sizes]}

    record = measured(figures)
    for row in record["result"]["rows"]:
        for name in LAYERS:
            parts = ", ".join(f"{part} {share:.0%}" for part, share in row["shares"][name].items())
            times = f"{row['ms'][name]:8.1f} ms {row['of_s4d'][name]:5.2f}x"
            print(f"{row['length']:6,} x {row['batch']}  {name:15} {times}  {parts}")
    if given.output:
        given.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
