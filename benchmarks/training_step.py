"""How long a small training step takes, where most of the time is Python's: this tree beside another checkout.

    python benchmarks/training_step.py --against ../before --rounds 7

The other checkout needs its own compiled kernels. A step is a row of 64 tokens through two layers of width 64, forward,
backward and AdamW, on one thread. The trees take turns, each time in a new process; the figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MIXERS = ("Mamba2Config", "MambaConfig", "S4DConfig")


def step_of(mixer: str) -> Callable[[], None]:
    import torch

    import statewise as sw

    torch.manual_seed(0)
    layer = getattr(sw, mixer)()
    model = sw.LanguageModelConfig(vocab_size=256, d_model=64, layers=(layer, layer)).build()
    tokens = torch.randint(256, (1, 65))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        logits, _ = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(seconds: float) -> dict[str, float]:
    """Milliseconds a step of each mixer: the median of single steps."""
    found = {}
    for mixer in MIXERS:
        step, times = step_of(mixer), []
        for _ in range(20):
            step()
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            begun = time.perf_counter()
            step()
            times.append(time.perf_counter() - begun)
        found[mixer] = statistics.median(times) * 1e3
    return found


def in_tree(tree: Path, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout; without it this one's times alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each mixer in a round")
    arguments = parser.parse_args()
    if arguments.against is None:
        print(json.dumps(measure(arguments.seconds)))
        return
    rounds = []
    for i in range(arguments.rounds):
        trees = [HERE, arguments.against][:: -1 if i % 2 else 1]
        found = {tree: in_tree(tree, arguments.seconds) for tree in trees}
        rounds.append((found[HERE], found[arguments.against]))
    for mixer in MIXERS:
        ours, theirs = ([pair[i][mixer] for pair in rounds] for i in (0, 1))
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        print(
            f"{mixer:12}  {statistics.median(ours):6.3f} ms  against {statistics.median(theirs):6.3f} ms  "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
