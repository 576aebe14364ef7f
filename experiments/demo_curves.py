"""The training text's bits per byte against the time of training, of several runs, as a plot and as numbers.

    statewise train --preset demo --out runs/muon
    statewise train --preset demo --set train.optimizer.matrices=adamw --out runs/adamw
    statewise evaluate runs/muon --json > runs/muon/evaluation.json     # and so of the other: the test split
    python experiments/demo_curves.py --out experiments/results/demo-muon AdamW=runs/adamw Muon=runs/muon

Each point is the mean over 25 steps of text that the run has not seen before: the demo does not come to the end of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from statewise.reproduce.hardware import environment
from statewise.training import read_metrics, read_run
from statewise.training.plotting import plot_runs

XZ = 1.5464  # bits per byte of the test split by xz -9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="the plot and the numbers, without their suffixes")
    arguments = parser.parse_args()
    folders = {name: folder for name, _, folder in (run.partition("=") for run in arguments.runs)}
    found = {}
    for name, folder in folders.items():
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
        evaluated = Path(folder) / "evaluation.json"
        if evaluated.exists():
            found[name]["test_bits_per_byte"] = json.loads(evaluated.read_text())["bits_per_byte"]
    drawn = plot_runs(folders, x="time")
    axes = drawn.axes[1]  # of the metric, bits per byte
    axes.axhline(XZ, color="gray", linestyle=":")
    axes.annotate("xz -9 of the test split", (1.0, XZ), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_ylim(top=3.0)
    drawn.savefig(arguments.out.with_suffix(".png"), dpi=150)
    hardware = environment()
    del hardware["threads"]  # those of this script
    text = json.dumps({"hardware": hardware, "runs": found}, indent=1)
    arguments.out.with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
