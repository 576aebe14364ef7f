"""How many times as fast as other packages we are, on each processor that was measured: the picture of the README.

    statewise benchmark bars --json > bars.json                       # on each machine, with nothing else running
    python experiments/speed_figure.py "Zen 5=zen5.json" "Zen 4=zen4.json" --out docs/pictures/speed.svg

A file is what the first command prints, or an object that holds it under "bars".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from statewise.plots.style import figure

# What is shown: our label, the bar's name, and how its setting begins
SHOWN = (
    ("Mamba scan, training, vs mambapy", "scan: forward and backward, against mambapy", ""),
    ("Mamba-2, training, vs the paper's code", "ssd: forward and backward, against the listing", ""),
    ("Mamba-2, 8,192 tokens, vs attention", "ssd: forward and backward, against causal attention", "L=8,192"),
    ("S4D layer, training, vs plain PyTorch", "S4D layer: against the plain one", ""),
    ("reading a prompt, vs Hugging Face", "prefill: 512 tokens, against Hugging Face", ""),
    ("writing in bfloat16, vs Hugging Face", "decoding bfloat16: against Hugging Face", ""),
    ("writing in bfloat16, vs llama.cpp", "decoding bfloat16: against llama.cpp bfloat16", ""),
    ("writing in int8, vs llama.cpp", "decoding int8: against llama.cpp q8_0", ""),
    ("writing in 4 bits, vs llama.cpp", "decoding int4: against llama.cpp q4_0", ""),
)
COLOURS = ("#0072B2", "#E69F00", "#009E73")  # Okabe and Ito's: apart for every eye, and in grey


def read_bars(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text("utf-8"))
    bars: list[dict[str, Any]] = found["bars"] if isinstance(found, dict) else found
    return bars


def ratio(bars: list[dict[str, Any]], name: str, setting: str) -> float | None:
    return next((bar["ratio"] for bar in bars if bar["name"] == name and bar["setting"].startswith(setting)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    machines = {name: read_bars(Path(file)) for name, _, file in (text.partition("=") for text in arguments.machines)}
    height = 0.8 / len(machines)
    with figure(arguments.out, 8.0, 4.6) as drawn:
        axes = drawn.add_subplot(xscale="log", xlabel="times as fast (two cores, no GPU; higher is better)")
        for number, (machine, bars) in enumerate(machines.items()):
            values = [ratio(bars, name, setting) for _, name, setting in SHOWN]
            places = [row + (number - (len(machines) - 1) / 2) * height for row in range(len(SHOWN))]
            known = [(place, value) for place, value in zip(places, values) if value is not None]
            axes.barh(*zip(*known), height=height, color=COLOURS[number], label=machine)
            for place, value in known:
                axes.text(value * 1.04, place, f"{value:.3g}x", va="center", fontsize=8)
        axes.set_yticks(range(len(SHOWN)), [label for label, _, _ in SHOWN])
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(0.9, 150)
        axes.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)


if __name__ == "__main__":
    main()
