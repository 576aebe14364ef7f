"""Classifiers of 262,144 and 1,048,576 steps: the presets as they are, their test, their time and their memory.

    python experiments/long_tasks.py long-retrieval-262k --out long_tasks.json
    python experiments/long_tasks.py long-audio-262k --data-dir recordings --out long_tasks.json

Each preset is trained and evaluated in a process of its own. Memory is the most that the process held while it trained
and was evaluated on the validation split. A file that --out names is added to. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from statewise.reproduce.hardware import environment

PRESETS = ("long-retrieval-262k", "long-retrieval-1m", "long-audio-262k", "long-audio-1m")


def call(*words: str) -> tuple[str, float]:
    """What a command prints, and its seconds."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "statewise", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout, time.perf_counter() - begun


def run(preset: str, folder: Path, more: list[str]) -> dict[str, Any]:
    _, seconds = call("train", "--preset", preset, "--out", str(folder), *more)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    test, test_seconds = call("evaluate", str(folder), "--split", "test", "--json")
    result = json.loads(test)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    return {
        "environment": environment(),
        "seconds": seconds,
        "peak_mb": peak,
        "steps": trained[-1]["step"],
        "sequences": trained[-1]["sequences"],
        "losses": [[line["step"], line["loss"]] for line in trained],
        "test_seconds": test_seconds,
        "test": {name: result[name] for name in ("accuracy", "loss", "sequences", "classes", "confusion")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--data-dir", help="the folder of the recordings")
    parser.add_argument("--set", action="append", default=[], help="as for statewise train")
    parser.add_argument("--run", type=Path, help="where the run is kept; without it it is not")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    more = [word for assignment in arguments.set for word in ("--set", assignment)]
    if arguments.data_dir:
        more += ["--data-dir", arguments.data_dir]
    with tempfile.TemporaryDirectory() as temporary:
        record = run(arguments.preset, arguments.run or Path(temporary) / "run", more)
    record["set"] = arguments.set
    print(json.dumps({name: value for name, value in record.items() if name != "losses"}, indent=1))
    if arguments.out:
        known = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
        arguments.out.write_text(json.dumps({**known, arguments.preset: record}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
