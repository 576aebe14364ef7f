"""kill -9 of one rank of a run under torchrun's agent, half of the times during a save: does the run come to its end?

    python experiments/kill_ranks.py                      20 kills: five runs of four, by two and by four ranks
    python experiments/kill_ranks.py --runs 1 --seed 3 --output kills.json

Each run is killed four times, at moments that the seed decides: some steps into an attempt, or at one of the calls by
which rank 0 saves. The agent starts all ranks anew, and the same command goes on. At the end the run has to have the
metrics and the tensors of one with as many ranks that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from training_runs import curve

from statewise import checkpoints
from statewise.reproduce.hardware import environment

TESTS = Path(__file__).resolve().parents[1] / "tests"
KILLS_OF_A_RUN = 4


def killed(folder: Path, n_ranks: int, kills: list[tuple[int, str, int]]) -> dict[str, Any]:
    """A run in a folder of its own, by tests/distributed_killed.py."""
    folder.mkdir()
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, str(TESTS / "distributed_killed.py"), str(folder), str(n_ranks), json.dumps(kills)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "STATEWISE_CACHE": str(folder.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"the run in {folder} did not come to its end:\n{result.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def everything(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoints.resolve(run, "latest")
    return {**checkpoints.load(latest).state_dict(), **checkpoints.read_trainer(latest)[0]}


def is_same(one: Path, other: Path) -> bool:
    """Both runs to the bit, but for the clock."""
    first, second = everything(one), everything(other)
    return (
        curve(one) == curve(other)
        and first.keys() == second.keys()
        and all(torch.equal(first[name], second[name]) for name in first)
    )


def main(n_runs: int, seed: int, output: Path | None) -> None:
    generator, records = random.Random(seed), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n_ranks in (2, 4):
            killed(folder / f"straight-{n_ranks}", n_ranks, [])
        for number in range(n_runs):
            n_ranks, kills = (2, 4)[number % 2], []
            for kill in range(KILLS_OF_A_RUN):
                where = ("step", "save")[kill % 2]
                moment = generator.randint(1, 4) if where == "step" else generator.randint(1, 25)
                kills.append((generator.randrange(n_ranks), where, moment))
            begun = time.monotonic()
            found = killed(folder / f"run-{number}", n_ranks, kills)
            same = is_same(folder / f"run-{number}" / "killed", folder / f"straight-{n_ranks}" / "killed")
            record = {"ranks": n_ranks, "kills": kills, **found, "same": same, "seconds": time.monotonic() - begun}
            print(json.dumps(record), flush=True)
            records.append(record)
    dead = [is_dead for record in records for is_dead in record["dead"]]
    result = {"runs": records, "kills": sum(dead), "not_the_same": sum(not r["same"] for r in records)}
    print(f"{result['kills']} kills in {n_runs} runs; {result['not_the_same']} runs ended otherwise than undisturbed")
    if output is not None:
        output.write_text(json.dumps({"seed": seed, **environment(), **result}, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="kill ranks of runs under torchrun's agent")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    main(options.runs, options.seed, options.output)
