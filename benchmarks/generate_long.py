"""Does a token cost the same, however many came before? Time and memory of a long generation, every 10,000 tokens.

    python benchmarks/generate_long.py                    # 100,000 tokens of the demo's model
    python benchmarks/generate_long.py --layers mamba     # state-space layers only
    python benchmarks/generate_long.py --layers full      # with full attention, for contrast: both grow

The last lines compare the last part with the first: ratios near 1 are constant time and constant memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time

import torch
from torch.utils._pytree import tree_leaves

import statewise as sw
from statewise.generation import Reading, generate
from statewise.models.presets import PRESETS


def build(layers: str) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = PRESETS["demo"](257)
    if layers == "hybrid":
        return config.build()
    mamba = config.layers[0]
    other = mamba if layers == "mamba" else sw.AttentionConfig(n_heads=6, n_kv_heads=2, d_head=32)
    return sw.LanguageModelConfig(vocab_size=257, d_model=192, layers=(mamba, mamba, other, mamba)).build()


def resident_megabytes() -> float:
    """Memory in use now; where the system does not tell, the most so far."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return peak_megabytes()


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def state_bytes(reading: Reading) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(reading))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000)
    parser.add_argument("--layers", choices=("hybrid", "mamba", "full"), default="hybrid")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.every < 1 or arguments.tokens < 2 * arguments.every:
        parser.error("--tokens must be at least twice --every")
    torch.set_num_threads(arguments.threads)
    model = build(arguments.layers).eval()
    print(f"{arguments.layers}, {sum(p.numel() for p in model.parameters()):,} parameters, torch {torch.__version__}")
    print(f"{'tokens':>10} {'us/token':>10} {'median us':>10} {'state bytes':>12} {'resident MB':>12} {'peak MB':>9}")

    rows: list[tuple[float, float, int, float, float]] = []
    times: list[float] = []
    before = time.perf_counter()
    for n, token in enumerate(generate(model, [0], max_new_tokens=arguments.tokens, seed=0), 1):
        now = time.perf_counter()
        times.append(now - before)
        before = now
        if n % arguments.every == 0:
            row = (
                1e6 * statistics.fmean(times),
                1e6 * statistics.median(times),
                state_bytes(token.reading),
                resident_megabytes(),
                peak_megabytes(),
            )
            rows.append(row)
            print(f"{n:>10,} {row[0]:>10.1f} {row[1]:>10.1f} {row[2]:>12,} {row[3]:>12.1f} {row[4]:>9.1f}", flush=True)
            times.clear()
            before = time.perf_counter()
    names = ("time per token", "median time per token", "state", "resident memory", "peak memory")
    for name, first, last in zip(names, rows[0], rows[-1]):
        print(f"{name}: last / first = {last / first:.3f}")


if __name__ == "__main__":
    main()
