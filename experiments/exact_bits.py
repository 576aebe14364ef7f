"""Random partitions, batches, paddings and packings in exact mode: how many bits differ from the row by itself.

    python experiments/exact_bits.py --comparisons 10000 --out exact_bits.jsonl

Every causal mixer, some in several widths, and five hybrids; every second batch with the gradients of inputs and
states. A line of the result is a subject: comparisons by the way of reading, and the numbers that differ in any bit.
Mixers whose steps are slow have shorter rows.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from exact_cases import HYBRIDS, Subject, cases, mixers, model_subject

import statewise as sw
from statewise.reproduce.hardware import environment

SLOW = ("Mamba-3", "S4", "LSSL", "Kalman", "Kalman innovations", "HiPPO-RNN", "mLSTM")  # a step in Python each


def compare(subject: Subject, batches: int, seed: int) -> dict[str, object]:
    """Comparisons and differing numbers by the way of reading, with gradients in every second batch."""
    done: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    begin = time.perf_counter()
    for batch in range(batches):
        gradients = batch % 2 == 1
        torch.manual_seed(seed + batch)
        with torch.set_grad_enabled(gradients):
            for way, found in cases(subject, random.Random(seed + batch), with_gradients=gradients):
                done[way] += 1
                differing[way] += found
    return {
        "subject": subject.name,
        "comparisons": dict(done),
        "with_gradients": batches // 2 * len(done),
        "differing": sum(differing.values()),
        "differing_by_way": {way: n for way, n in differing.items() if n},
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    subjects = [*mixers(given.longest), *(model_subject(name, given.longest) for name in HYBRIDS)]
    batches = -(-given.comparisons // (7 * len(subjects)))
    total: Counter[str] = Counter()
    with given.out.open("w", encoding="utf-8") as out, sw.exact():
        for subject in subjects:
            if subject.name in SLOW:
                subject = subject._replace(longest=min(given.longest, 12))
            found = compare(subject, batches, given.seed)
            total["comparisons"] += sum(found["comparisons"].values())  # type: ignore[attr-defined]
            total["differing"] += int(str(found["differing"]))
            print(json.dumps(found), file=out, flush=True)
            print(found["subject"], found["differing"], found["seconds"], flush=True)
        print(json.dumps({"total": dict(total), "environment": environment()}), file=out)
    print(dict(total))


if __name__ == "__main__":
    main()
