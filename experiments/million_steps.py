"""Full back-propagation through a million steps: gradients beside the undivided ones, memory and time against length.

    python experiments/million_steps.py --out million_steps.json --plot million_steps.png

Four layers of Mamba-2 and of S4D. Each measurement has a process of its own; its memory is the most that the process
held, above what it held before. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statewise as sw
from statewise.reproduce.hardware import environment

MIXERS = {"mamba2": sw.Mamba2Config(d_state=16, d_head=16), "s4d": sw.S4DConfig(d_state=16)}
WIDTH, LAYERS, CLASSES = 32, 4, 16


def build(mixer: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (sw.BlockConfig(mixer=MIXERS[mixer], norm="layer"),) * LAYERS
    return sw.LanguageModelConfig(vocab_size=CLASSES, d_model=WIDTH, layers=layers, norm="layer").build()


def one(mixer: str, length: int, piece: int | None) -> dict[str, Any]:
    """A gradient of ``length`` steps; piece: None for the undivided one."""
    model = build(mixer)
    tokens = torch.randint(CLASSES, (1, length + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def loss(scores: Tensor, here: slice) -> Tensor:
        return torch.nn.functional.cross_entropy(scores.mT, targets[:, here], reduction="sum") / length

    def step(inputs: Tensor) -> Tensor:
        if piece is not None:
            return sw.backward_in_pieces(model, inputs, loss, piece=piece)[0]
        scores, _ = model(inputs)
        total = loss(scores, slice(0, inputs.shape[1]))
        total.backward()
        return total.detach()

    step(inputs[:, : min(4096, length)])  # what is set up once
    model.zero_grad()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    total = step(inputs)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return {
        "mixer": mixer,
        "length": length,
        "piece": piece,
        "seconds": seconds,
        "peak_mb": (peak - before) / 1024,
        "loss": float(total),
        "gradient": gradient.double().tolist(),
    }


def measured(mixer: str, length: int, piece: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", mixer, str(length), str(piece or 0)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{mixer}, {length:,} steps, piece {piece}: {found['seconds']:.1f} s, {found['peak_mb']:,.0f} MB", flush=True)
    return found


def compare(mixer: str, length: int, piece: int, rounds: int) -> dict[str, Any]:
    """Pieces beside the undivided gradient, in turns."""
    pairs = [(measured(mixer, length, piece), measured(mixer, length, None)) for _ in range(rounds)]
    pieces, whole = (torch.tensor(found["gradient"], dtype=torch.float64) for found in pairs[0])
    ratios = sorted(a["seconds"] / b["seconds"] for a, b in pairs)
    return {
        "mixer": mixer,
        "length": length,
        "piece": piece,
        "relative_difference": float((pieces - whole).norm() / whole.norm()),
        "time_ratio": ratios[len(ratios) // 2],
        "peak_mb": [pairs[0][i]["peak_mb"] for i in (0, 1)],
    }


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained", sharey=True)
    for ax, mixer in zip(axes, MIXERS):
        for piece, label, style in ((record["piece"], "in pieces", "o-"), (None, "undivided", "s--")):
            rows = [row for row in record["runs"] if row["mixer"] == mixer and row["piece"] == piece]
            ax.plot([row["length"] for row in rows], [row["peak_mb"] for row in rows], style, label=label)
        ax.set(xscale="log", yscale="log", title=mixer, xlabel="steps")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("peak memory of a gradient, MB")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--piece", type=int, default=4096)
    parser.add_argument("--longest", type=int, default=2**20)
    parser.add_argument("--whole", type=int, default=2**16, help="the longest undivided gradient")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        mixer, length, piece = arguments.one
        print(json.dumps(one(mixer, int(length), int(piece) or None)))
        return
    record: dict[str, Any] = {"environment": environment(), "piece": arguments.piece, "layers": LAYERS, "width": WIDTH}
    pieces = (arguments.piece, 4 * arguments.piece)  # the longer ones cost less time and more memory
    record["comparisons"] = [compare(m, arguments.whole, n, arguments.rounds) for m in MIXERS for n in pieces]
    runs = []
    for mixer in MIXERS:
        length = 4 * arguments.piece
        while length <= arguments.longest:
            runs.append(measured(mixer, length, arguments.piece))
            if length <= arguments.whole:
                runs.append(measured(mixer, length, None))
            length *= 4
    record["runs"] = [{key: value for key, value in run.items() if key != "gradient"} for run in runs]
    text = json.dumps(record, indent=1)
    print(json.dumps(record["comparisons"], indent=1))
    if arguments.out:
        arguments.out.write_text(text + "\n", "utf-8")
    if arguments.plot:
        draw(record, arguments.plot)


if __name__ == "__main__":
    main()
