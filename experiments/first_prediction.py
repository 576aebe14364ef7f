"""From `pip install` to the first prediction on an own CSV: three commands, and how many seconds they take.

    python experiments/first_prediction.py --output first.json
    python experiments/first_prediction.py --install statewise[files]        # from the index, not this checkout
    python experiments/first_prediction.py --pip="--constraint constraints.txt" --epochs 5

It makes an empty folder with a fresh virtual environment and two CSV files: scikit-learn's digits, 64 numbers a row.
Of six rows five have their label, and the sixth is data that nobody has labelled. Then it runs what a new user types:

    pip install statewise[files]
    statewise train --data table.csv --label-field digit --out run
    statewise predict run new.csv --out answers.csv

and compares the answers with the labels that it kept. The first command includes what pip downloads, or has in its
cache. Let the machine do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from statewise.reproduce.hardware import environment

ROOT = Path(__file__).resolve().parents[1]
LABEL = "digit"


def write_tables(folder: Path) -> list[str]:
    """table.csv with labels, new.csv without; gives the labels of new.csv."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = [f"pixel {i}" for i in range(digits.data.shape[1])]
    rows = [[*map(int, row), int(label)] for row, label in zip(digits.data, digits.target)]
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*names, LABEL], *(row for i, row in enumerate(rows) if i % 6)])
    held_out = [row for i, row in enumerate(rows) if i % 6 == 0]
    with (folder / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *(row[:-1] for row in held_out)])
    return [str(row[-1]) for row in held_out]


def timed(folder: Path, words: list[str], shown: str) -> dict[str, Any]:
    """Runs a command in the folder, its environment first in the path. Ends with it if it fails."""
    path = os.pathsep.join([str(folder / "env" / ("Scripts" if os.name == "nt" else "bin")), os.environ["PATH"]])
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    begin = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env={**outside, "PATH": path}, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"{shown}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    print(f"{seconds:8.1f} s  {shown}", flush=True)
    return {"command": shown, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", default=f"{ROOT}[files]", help="what pip installs")
    parser.add_argument("--pip", default="", help="further options of pip install, in one string")
    parser.add_argument("--epochs", help="for train; left out, the preset decides")
    parser.add_argument("--output", type=Path, help="also write it as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labels = write_tables(folder)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        train = ["train", "--data", "table.csv", "--label-field", LABEL, "--out", "run"]
        train += ["--epochs", given.epochs] if given.epochs else []
        predict = ["predict", "run", "new.csv", "--out", "answers.csv"]
        install = ["-m", "pip", "install", "--quiet", given.install, *shlex.split(given.pip)]
        steps = [timed(folder, [str(scripts / "python"), *install], "pip install statewise[files]")]
        for words in (train, predict):
            steps.append(timed(folder, [str(scripts / "statewise"), *words], shlex.join(["statewise", *words])))
        with (folder / "answers.csv").open(newline="") as file:
            answers = [row["class"] for row in csv.DictReader(file)]
    right = sum(answer == label for answer, label in zip(answers, labels, strict=True))
    total = sum(step["seconds"] for step in steps)
    print(f"{total:8.1f} s  in {len(steps)} commands; {right} of {len(labels)} right ({right / len(labels):.1%})")
    record = {"steps": steps, "seconds": total, "right": right, "rows": len(labels), "environment": environment()}
    if given.output is not None:
        given.output.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
