"""A signal of a million steps through layers of S4, piece by piece: memory and time at its beginning and at its end.

    python benchmarks/stream_signal.py [--steps 1000000] [--piece 4096] [--json FILE]

Prints the resident memory and the time per step over the first and the last tenth, and how far the output differs
from one call over the first 100,000 steps. Memory may not grow: what is kept between two pieces is the state.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch

import statewise as sw
from statewise.reproduce.hardware import environment


def resident_bytes() -> int:
    """What the process holds now (Linux), else the most that it ever held."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def signal(first: int, n: int, width: int) -> torch.Tensor:
    """The steps [first, first + n) of a signal that is a function of time alone, so that none of it has to be kept."""
    time_ = torch.arange(first, first + n, dtype=torch.float64)[:, None]
    rates = torch.logspace(-4, 0, width, dtype=torch.float64)
    return torch.sin(time_ * rates + rates.log()).float().unsqueeze(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--piece", type=int, default=4096)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layer = sw.BlockConfig(mixer=sw.S4Config(d_state=64), norm="layer")
    config = sw.SequenceRegressorConfig(
        d_input=arguments.width, d_output=1, d_model=arguments.width, layers=(layer,) * arguments.layers, pooling=None
    )
    model = config.build().eval().freeze()
    rows, checked = [], min(100_000, arguments.steps)
    with torch.inference_mode():
        whole, _ = model(signal(0, checked, arguments.width))
        worst, state = 0.0, model.initial_state(1)
        for first in range(0, arguments.steps, arguments.piece):
            n = min(arguments.piece, arguments.steps - first)
            begun = time.perf_counter()
            y, state = model(signal(first, n, arguments.width), state)
            rows.append(((time.perf_counter() - begun) / n, resident_bytes()))
            if first < checked:
                known = whole[:, first : first + n]
                worst = max(worst, float((y[:, : known.shape[1]] - known).abs().max() / whole.abs().max()))
    tenth = max(1, len(rows) // 10)
    early, late = rows[1 : tenth + 1] or rows, rows[-tenth:]
    record = {
        "steps": arguments.steps,
        "piece": arguments.piece,
        "layers": arguments.layers,
        "width": arguments.width,
        "microseconds_per_step": [1e6 * statistics.median(t for t, _ in part) for part in (early, late)],
        "resident_megabytes": [statistics.median(b for _, b in part) / 1e6 for part in (early, late)],
        "largest_difference_from_one_call": worst,
        "hardware": environment(),
    }
    for name in ("microseconds_per_step", "resident_megabytes"):
        first_value, last_value = record[name]
        ratio = last_value / first_value
        print(f"{name}: first tenth {first_value:,.2f}, last tenth {last_value:,.2f}, ratio {ratio:.3f}")
    print(f"relative difference from one call over the first {checked:,} steps: {worst:.1e}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
