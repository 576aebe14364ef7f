"""The training text's bits per byte against seconds, of several runs, as a plot and as numbers.

    statewise train --preset demo --out runs/muon
    statewise train --preset demo --set train.optimizer.matrices=adamw --out runs/adamw
    python experiments/demo_curves.py --out experiments/results/demo-muon AdamW=runs/adamw Muon=runs/muon

Each point is the mean over 25 steps of text that the run has not seen before: the demo does not come to the end of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from statewise.reproduce.hardware import environment
from statewise.train import read_metrics, read_run
from statewise.train.plotting import figure

XZ = 1.5464  # bits per byte of the test split by xz -9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="the plot and the numbers, without their suffixes")
    arguments = parser.parse_args()
    found = {}
    for name, _, folder in (run.partition("=") for run in arguments.runs):
        lines = read_metrics(Path(folder) / "metrics.jsonl")
        train = [line for line in lines if line["kind"] == "train"]
        config = read_run(Path(folder)).train
        found[name] = {
            "steps": train[-1]["step"],
            "tokens": train[-1]["tokens"],
            "validation_bits_per_byte": next(x["bits_per_byte"] for x in lines[::-1] if x["kind"] == "evaluation"),
            "matrices": config.optimizer.matrices,
            "precision": config.precision,
            "seconds": [round(line["seconds"], 2) for line in train],
            "bits_per_byte": [round(line["bits_per_byte"], 4) for line in train],
        }
    with figure(arguments.out.with_suffix(".png")) as drawn:
        axes = drawn.add_subplot(xlabel="seconds of training", ylabel="bits per byte of new training text")
        for name, run in found.items():
            axes.plot(run["seconds"], run["bits_per_byte"], label=name)
        axes.axhline(XZ, color="gray", linestyle=":", label="xz -9 of the test split")
        axes.set_ylim(top=3.0)
        axes.legend()
    text = json.dumps({"hardware": environment(), "runs": found}, indent=1)
    arguments.out.with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
