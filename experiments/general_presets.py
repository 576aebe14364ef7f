"""The general presets on data that we know, as files, beside the presets that were tuned for them.

    python experiments/general_presets.py --output general.json        # about a quarter of an hour on two cores
    python experiments/general_presets.py digits gunpoint

Each data set is written as a file of one's own, trained by `statewise train --data FILE` with nothing else set, and
scored on the rows that the run has held out; so is the tuned preset, if there is one, on the same rows. The texts need
the folder of real data beside the checkout, and are left out without it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from statewise import cli
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.reproduce.hardware import environment

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
PASSAGE = 200  # characters


def digits(folder: Path) -> list[str]:
    from sklearn.datasets import load_digits

    found = load_digits()
    _table(folder / "digits.csv", found.data.astype(int), found.target)
    return ["--data", str(folder / "digits.csv")]


def pictures(folder: Path) -> list[str]:
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for i, (image, label) in enumerate(zip(found.images, found.target)):
        (folder / "png" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / "png" / str(label) / f"{i}.png")
    return ["--data", str(folder / "png")]


def ucr(name: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        found = open_labelled(LabelledDataConfig(source=f"ucr:{name}")).found
        parts = [rows for rows in (found.train, found.test) if rows is not None]
        values = np.concatenate([rows.values.reshape(len(rows.lengths), -1) for rows in parts])
        labels = np.concatenate([rows.targets for rows in parts])
        _table(folder / f"{name}.csv", values, np.array(found.classes)[labels])
        return ["--data", str(folder / f"{name}.csv")]

    return write


def passages(folder: Path) -> list[str]:
    """3,000 passages each of Shakespeare's plays, of Wikipedia and of novels, in small letters."""
    draw = random.Random(0)
    plays = (SHARED / "tinyshakespeare.txt").read_text("utf-8").split("\n\n")
    articles = (SHARED / "wikitext2_valid.txt").read_text("utf-8").replace(" . ", " .\n").splitlines()
    novels = [json.loads(line)["text"] for line in (SHARED / "lambada_test.jsonl").read_text("utf-8").splitlines()]
    sources = {
        "shakespeare": [play.replace("\n", " ").split(":", 1)[-1].strip() for play in plays],
        "wikipedia": [line.strip() for line in articles],
        "novel": [text.replace("\n", " ") for text in novels],
    }
    rows = [
        {"text": text[:PASSAGE].lower(), "from": name}
        for name, texts in sources.items()
        for text in draw.sample([text for text in texts if len(text) > 60], 3000)
    ]
    draw.shuffle(rows)
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return ["--data", str(folder / "passages.jsonl"), "--text-field", "text", "--label-field", "from"]


def co2(folder: Path) -> list[str]:
    return ["--data", "co2"]


CASES: dict[str, tuple[Callable[[Path], list[str]], str | None]] = {  # and the preset that was tuned for it
    "digits": (digits, "digits"),
    "pictures": (pictures, None),
    "gunpoint": (ucr("GunPoint"), None),
    "acsf1": (ucr("ACSF1"), "acsf1"),
    "passages": (passages, None),
    "co2": (co2, "co2"),
}


def _table(path: Path, values: np.ndarray, labels: np.ndarray) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"step {i}" for i in range(values.shape[1])), "label"])
        writer.writerows([*row, label] for row, label in zip(values.tolist(), labels.tolist()))


def call(words: list[str]) -> list[dict[str, Any]]:
    """The records of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.run(words)
    if code:
        raise SystemExit(code)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--output", type=Path, help="also write it as JSON")
    given = parser.parse_args()
    if unknown := sorted({*given.cases} - {*CASES}):
        parser.error(f"there is no case {unknown[0]!r}; use some of {', '.join(CASES)}")
    records = []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for case in given.cases or CASES:
            if case == "passages" and not SHARED.is_dir():
                print(f"{case}: left out, there is no {SHARED}")
                continue
            write, tuned = CASES[case]
            words = write(Path(name))
            for preset in (None, tuned) if tuned else (None,):
                run = ["train", *(["--preset", preset, *([] if case == "co2" else words)] if preset else words)]
                run += ["--label-field", "label"] if preset and case != "co2" else []
                folder = os.path.join("runs", f"{case}-{preset or 'general'}")
                seconds = call([*run, "--out", folder])[-1]["seconds"]
                score = call(["evaluate", folder, "--json"])[0]
                metric = "accuracy" if "accuracy" in score else "mase"
                records.append({"case": case, "preset": preset, "seconds": seconds, metric: score[metric]})
                print(f"{case:10} {preset or 'general':10} {metric} {score[metric]:.4f}, {seconds:.0f} s", flush=True)
    if given.output is not None:
        given.output.write_text(
            json.dumps({"records": records, "environment": environment()}, indent=2) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
