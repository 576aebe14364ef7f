"""What exact mode costs: its time over the fast one's in training, prefill and decoding.

    python benchmarks/exact.py --out exact.jsonl

Language models of the layers of mamba2-130m and mamba-130m, fewer of them; float32, on the CPU. Fast and exact runs
alternate, and the least time of each counts. Decoding is one token after another: by the model's own step in both, and
beside it the step in C, which exact mode does not have.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import statewise as sw
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.reproduce.hardware import environment

WIDTH, LAYERS, VOCABULARY = 768, 4, 8192
MODELS: dict[str, sw.MixerConfig] = {"mamba2-130m": sw.Mamba2Config(), "mamba-130m": sw.MambaConfig()}


def best(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Seconds of each, in turns."""
    least = dict.fromkeys(runs, float("inf"))
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if repeat:
                least[name] = min(least[name], time.perf_counter() - begin)
    return least


def both(run: Callable[[], None]) -> dict[str, Callable[[], None]]:
    """The same work fast and exact."""
    return {"fast": run, "exact": sw.exact()(run)}


def measure(name: str, length: int, repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=WIDTH, layers=(MODELS[name],) * LAYERS).build()
    tokens = torch.randint(VOCABULARY, (1, length + 1))

    def train() -> None:
        model.zero_grad()
        features, _ = model.features(tokens[:, :-1])
        linear_cross_entropy(features.flatten(0, 1), model.head.weight, tokens[:, 1:].flatten()).mean().backward()

    @torch.inference_mode()
    def prefill() -> None:
        model(tokens[:, :-1], model.initial_state(1))

    with torch.inference_mode():
        _, state = model(tokens[:, :64], model.initial_state(1))

    @torch.inference_mode()
    def decode() -> None:
        now = state
        for i in range(16):
            _, now = model(tokens[:, 64 + i : 65 + i], now)

    decoder = sw.Decoder(model)

    @torch.inference_mode()
    def decode_in_c() -> None:
        running = decoder.run(state)
        for i in range(16):
            running.step(tokens[:, 64 + i])

    found = {
        "training": best(both(train), repeats),
        "prefill": best(both(prefill), repeats),
        "decoding": best({**both(decode), "in C": decode_in_c}, repeats),
    }
    return {
        "model": name,
        "length": length,
        "threads": torch.get_num_threads(),
        "seconds": {task: {way: round(t, 5) for way, t in times.items()} for task, times in found.items()},
        "exact_over_fast": {task: round(times["exact"] / times["fast"], 3) for task, times in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = [measure(name, given.length, given.repeats) for name in MODELS]
    lines.append({"environment": environment()})
    for line in lines:
        print(json.dumps(line))
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
