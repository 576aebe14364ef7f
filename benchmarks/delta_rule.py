"""The chunked delta rule in C, beside transformers' PyTorch path and beside the recurrence: milliseconds and ratios.

    python benchmarks/delta_rule.py                      # one thread, length 2,048
    python benchmarks/delta_rule.py --length 8192 --threads 2 --out delta.json

Gated DeltaNet of the sizes of Qwen3-Next's heads (128 by 128), float32, the same inputs for all: ours, in C, from q, k,
v, beta and log decays; ``torch_chunk_gated_delta_rule`` and ``torch_recurrent_gated_delta_rule`` of transformers'
``qwen3_next``; and our recurrence, step after step in PyTorch. Timed by turns, the least of a few rounds, in processor
time on one thread, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import statewise as sw
from statewise import native

Runs = dict[str, Callable[[], Tensor]]


def cases(length: int, heads: int, width: int, *, channels: bool) -> tuple[Runs, Callable[[], Tensor]]:
    """What is timed, by name, and the recurrence in float64."""
    g = torch.Generator().manual_seed(0)
    q, k = (F.normalize(torch.randn(1, length, heads, width, generator=g), dim=-1) for _ in range(2))
    v = torch.randn(1, length, heads, width, generator=g)
    beta = torch.rand(1, length, heads, generator=g)
    log_a = -0.2 * torch.rand(1, length, heads, *((width,) if channels else ()), generator=g)
    operator = sw.DeltaRule(q * width**-0.5, k, beta, log_a)
    wide = sw.DeltaRule(q.double() * width**-0.5, k.double(), beta.double(), log_a.double())
    runs: Runs = {
        "chunked": lambda: operator(v, form="chunked")[0],
        "recurrent": lambda: operator(v, form="recurrent")[0],
    }
    if not channels:
        try:
            from transformers.models.qwen3_next import modeling_qwen3_next as theirs
        except ImportError:
            print("transformers is not installed, or has no qwen3_next: without it")
        else:
            given = {"query": q, "key": k, "value": v, "g": log_a, "beta": beta}
            runs["transformers, chunked"] = lambda: theirs.torch_chunk_gated_delta_rule(**given)[0]
            runs["transformers, recurrent"] = lambda: theirs.torch_recurrent_gated_delta_rule(
                **given, initial_state=None, output_final_state=False
            )[0]
    return runs, lambda: wide(v.double(), form="recurrent")[0]


def timed(run: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return 1e3 * (clock() - begin)


def measure(length: int, heads: int, width: int, rounds: int, *, channels: bool) -> dict[str, dict[str, float]]:
    runs, exact = cases(length, heads, width, channels=channels)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        want = exact()
        found = {}
        for name, run in runs.items():
            error = (run().double() - want).abs().max() / want.abs().max()
            found[name] = {"error beside float64": float(error)}
        for turn in range(rounds):
            for name, run in runs.items():
                if "recurrent" not in name or turn < 2:
                    times[name].append(timed(run, clock))
    for name, taken in times.items():
        found[name]["milliseconds"] = min(taken)
        found[name]["times the chunked one"] = min(taken) / min(times["chunked"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {}
    for kind, channels in (("a decay a head", False), ("a decay a channel", True)):
        results[kind] = measure(arguments.length, arguments.heads, arguments.width, arguments.rounds, channels=channels)
        print(f"{kind}, length {arguments.length}, {arguments.heads} heads of {arguments.width}")
        for name, row in results[kind].items():
            print(
                f"  {name:25} {row['milliseconds']:10.1f} ms {row['times the chunked one']:8.1f} x"
                f"   error {row['error beside float64']:.1e}"
            )
    if arguments.out is not None:
        facts = {"torch": torch.__version__, "threads": arguments.threads, "instructions": native.instruction_set()}
        arguments.out.write_text(
            json.dumps({**facts, "length": arguments.length, "heads": arguments.heads, **results}, indent=1)
        )


if __name__ == "__main__":
    main()
