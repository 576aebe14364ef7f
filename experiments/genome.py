"""A genome as a language model, base by base, beside an order-12 context model and xz; states carried, and not.

    python experiments/genome.py --data NC_008253.fna.gz --out genome.json --plot genome.png

The genome is that of Escherichia coli 536, a file of Debian's package bowtie-examples; without --data it is looked for
where that puts it. Each model is trained for so many minutes (--minutes, 10 by default), so nothing else should run; or
for so many steps (--steps), which are the same whatever else runs, with the schedule that follows their number. All are
asked for the last tenth of the genome, in bits per base.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from statewise.configuration import assign
from statewise.data.text import TextDataConfig, open_corpus
from statewise.reproduce.hardware import environment
from statewise.training.presets import PRESETS

ORDER = 12
STRENGTHS = (16.0, 64.0, 256.0, 1024.0)  # what the order below counts for, beside an observation
LOOKS = 10  # at the validation split, if the budget is in steps
ARMS = {"carried": "true", "from rest": "false"}


def places(letters: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of the ``order`` letters before each one, and that of these with it; before the first letter is 0."""
    context = np.zeros(len(letters), np.int64)
    for back in range(1, order + 1):
        context[back:] += letters[:-back].astype(np.int64) << 2 * (back - 1)
    return context, context << 2 | letters


def earlier(keys: np.ndarray) -> np.ndarray:
    """(n,) how often each key came before."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    runs = np.diff(np.concatenate([first, [len(keys)]]))
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(first, runs)
    return found


def until(keys: np.ndarray, begin: int) -> np.ndarray:
    """(n - begin,) how often each key from ``begin`` on came before ``begin``."""
    known = np.sort(keys[:begin])
    asked = keys[begin:]
    return np.searchsorted(known, asked, "right") - np.searchsorted(known, asked, "left")


def context_bits(counts: list[tuple[np.ndarray, np.ndarray]], strength: float) -> np.ndarray:
    """(n,) the cost of each letter in bits, by an arithmetic coder with these counts of (letter, context) by order.

    Order 0 is the estimator of Krichevsky and Trofimov. Each order above adds its own counts to the probability of the
    one below, which counts for ``strength`` observations: p_k = (n_letter + s p_(k-1)) / (n_context + s).
    """
    p = (counts[0][0] + 0.5) / (counts[0][1] + 2.0)
    for letter, context in counts[1:]:
        p = (letter + strength * p) / (context + strength)
    return -np.log2(p)


def by_contexts(letters: np.ndarray, begin: int) -> dict[str, Any]:
    """Bits per base from ``begin`` on of contexts of 12 letters: going on to count there, and counting no more.

    The strength is the one that costs least before ``begin``.
    """
    keys = [places(letters, order) for order in range(ORDER + 1)]
    counts = [(earlier(both), earlier(context)) for context, both in keys]
    costs = {s: context_bits(counts, s) for s in STRENGTHS}
    best = min(STRENGTHS, key=lambda s: float(costs[s][:begin].mean()))
    alone = -np.log2((counts[-1][0] + 1 / 16) / (counts[-1][1] + 1 / 4))
    frozen = context_bits([(until(both, begin), until(context, begin)) for context, both in keys], best)
    return {
        "strength": best,
        "adaptive": float(costs[best][begin:].mean()),
        "frozen": float(frozen.mean()),
        "without_lower_orders": float(alone[begin:].mean()),
    }


def by_xz(text: bytes, begin: int) -> dict[str, float]:
    """Bits per base from ``begin`` on: that part alone, and what it adds to the part before it."""

    def size(data: bytes) -> int:
        return len(lzma.compress(data, preset=9))

    n = len(text) - begin
    return {"alone": 8 * size(text[begin:]) / n, "after_the_rest": 8 * (size(text) - size(text[:begin])) / n}


def call(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "statewise", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def train(data: str, folder: Path, carry: str, unit: str, amount: float) -> dict[str, Any]:
    """Trains one arm, and evaluates it on the last tenth from one stream. unit: "minutes" or "steps"."""
    print(f"training for {amount:g} {unit}, train.carry_state={carry}", flush=True)
    settings = ["--set", f"train.carry_state={carry}", f"--{unit}", str(amount)]
    if unit == "steps":  # looks at the same steps, whatever else runs
        looks = max(1, round(amount / LOOKS))
        for name, value in (("every", looks), ("minutes", "null")):
            settings += ["--set", f"train.reporting.evaluate_{name}={value}"]
    call("train", "--preset", "genome", "--data", data, "--out", str(folder), *settings)
    evaluated = {
        name: json.loads(call("evaluate", str(folder), "--split", "test", "--no-compressors", "--json", *more))
        for name, more in (("carried", []), ("windows", ["--window", "1024"]))
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    last = [line for line in lines if line["kind"] == "train"][-1]
    per_step = last["tokens"] // last["step"]
    seen = [line for line in lines if line["kind"] == "evaluation"]
    return {
        "bits_per_base": evaluated["carried"]["bits_per_byte"],
        "bits_per_base_in_windows": evaluated["windows"]["bits_per_byte"],
        "steps": last["step"],
        "tokens": last["tokens"],
        "curve": [[line["seconds"], line["bits_per_byte"]] for line in seen],
        "tokens_of_curve": [line["step"] * per_step for line in seen],
    }


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    by_steps = record.get("budget", {}).get("unit") == "steps"
    figure, ax = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    for name, style in zip(ARMS, ("o-", "s--")):
        arm = record["arms"][name]
        points = np.array(arm["curve"])
        x = np.array(arm["tokens_of_curve"]) / 1e6 if by_steps else points[:, 0] / 60
        ax.plot(x, points[:, 1], style, markersize=3, label=f"states {name}: {arm['bits_per_base']:.4f}")
    for name, value in (
        ("order 12, counting on", record["contexts"]["adaptive"]),
        ("order 12, frozen", record["contexts"]["frozen"]),
    ):
        ax.axhline(value, color="0.5", linestyle=":" if "frozen" in name else "-.", label=f"{name}: {value:.4f}")
    ax.set(xlabel="millions of bases read" if by_steps else "minutes of training", ylabel="bits per base")
    ax.set_ylim(top=2.02)
    ax.legend(frameon=False, title=f"last tenth (xz -9: {record['xz']['alone']:.3f})", loc="upper right")
    ax.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="e-coli")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, default=10.0, help="of each arm (10)")
    budget.add_argument("--steps", type=int, help="of each arm, instead of minutes")
    parser.add_argument("--runs", type=Path, help="where the runs are kept; without it they are not")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    config = assign(PRESETS["genome"]().data, [f"source={json.dumps(arguments.data)}"])
    assert isinstance(config, TextDataConfig)
    corpus = open_corpus(config)
    parts = [corpus.split(name) for name in ("train", "validation", "test")]
    text = b"".join(part.text_bytes() for part in parts).upper()
    begin = len(text) - parts[-1].n_bytes
    letters = np.frombuffer(text.translate(bytes.maketrans(b"ACGT", b"\0\1\2\3")), np.uint8)
    if letters.max() > 3:
        sys.exit("the genome has other letters than A, C, G and T, which the context model does not count")
    record: dict[str, Any] = {"environment": environment(), "bases": len(text), "asked": parts[-1].n_bytes}
    begun = time.perf_counter()
    record["contexts"] = by_contexts(letters, begin)
    record["contexts"]["seconds"] = time.perf_counter() - begun
    record["xz"] = by_xz(text, begin)
    print(json.dumps({"order 12": record["contexts"], "xz -9": record["xz"]}, indent=1), flush=True)
    unit, amount = ("minutes", arguments.minutes) if arguments.steps is None else ("steps", arguments.steps)
    record["budget"], record["arms"] = {"unit": unit, "of_each_arm": amount}, {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, carry in ARMS.items():
            folder = (arguments.runs or Path(temporary)) / name.replace(" ", "-")
            record["arms"][name] = train(arguments.data, folder, carry, unit, amount)
            print(name, json.dumps({k: v for k, v in record["arms"][name].items() if "curve" not in k}), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if arguments.plot:
        draw(record, arguments.plot)


if __name__ == "__main__":
    main()
