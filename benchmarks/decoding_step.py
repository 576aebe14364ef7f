"""Milliseconds of a decoder's step: presets, precisions, numbers of sequences, of this checkout or another.

    python benchmarks/decoding_step.py --presets mamba-130m,mamba2-130m --json out.json
    PYTHONPATH=../other-checkout python benchmarks/decoding_step.py

Matrices have the preset's sizes and hold a few random rows again and again: packed at once, multiplied like any other.
The state begins at rest, 16 steps are not counted, and each takes the likeliest token of the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from statewise import native
from statewise.benchmark.ceilings import READING, highest, kept
from statewise.benchmark.processor import describe_processor, processor
from statewise.decoding import PRECISIONS, Decoder, packing, program
from statewise.models.presets import PRESETS
from statewise.native.memory import in_huge_pages

VOCABULARY, NOT_COUNTED, LEAST = 50_280, 16, 5
FEW = 64  # rows

pack = packing.pack


def pack_few(weight: Tensor, precision: str, group: int | None = None) -> packing.Packed:
    few = pack(0.02 * torch.randn(FEW, weight.shape[1]), precision, group)
    n_blocks = -(-len(weight) // 16)

    def repeated(x: Tensor) -> Tensor:
        out = in_huge_pages(x.new_empty(n_blocks, *x.shape[1:]))
        for first in range(0, n_blocks, len(x)):
            out[first : first + len(x)] = x[: n_blocks - first]
        return out

    scales = None if few.scales is None else repeated(few.scales)
    return packing.Packed(repeated(few.data), scales, precision, *weight.shape, few.group)


def steps(decoder: Decoder, batch: int, seconds: float) -> list[float]:
    """Milliseconds of each."""
    running, token = decoder.run(decoder.initial_state(batch)), torch.zeros(batch, dtype=torch.int64)
    times: list[float] = []
    begun = time.perf_counter()
    for n in range(1_000_000):
        before = time.perf_counter()
        logits = running.step(token)
        assert logits is not None
        token = logits.argmax(-1)
        times.append(1e3 * (time.perf_counter() - before))
        if n == NOT_COUNTED:
            begun, times = time.perf_counter(), []
        if len(times) >= LEAST and n > NOT_COUNTED and time.perf_counter() - begun > seconds:
            break
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="mamba-130m")
    parser.add_argument("--weights", default=",".join(PRECISIONS))
    parser.add_argument("--sequences", default="1,8")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    program.pack = pack_few  # type: ignore[attr-defined]
    nn.init.kaiming_uniform_ = nn.init.normal_ = lambda tensor, *_, **__: tensor  # type: ignore[assignment]
    ceilings = kept()
    reading = None if ceilings is None else highest(ceilings["ceilings"], READING)
    found: list[dict[str, Any]] = []
    print(f"{describe_processor(processor())}; {native.instruction_set()}, {arguments.threads} threads")
    for preset in arguments.presets.split(","):
        model = PRESETS[preset](VOCABULARY).build().eval()
        for weights in arguments.weights.split(","):
            decoder = Decoder(model, weights)
            for batch in map(int, arguments.sequences.split(",")):
                with torch.inference_mode():
                    times = steps(decoder, batch, arguments.seconds)
                middle = statistics.median(times)
                speed = decoder.n_bytes / middle / 1e6
                record = {"preset": preset, "weights": weights, "sequences": batch, "milliseconds": round(middle, 3)}
                record |= {"fastest": round(min(times), 3), "GB/s": round(speed, 2)}
                record["share"] = None if reading is None else round(1e9 * speed / reading[1], 3)
                found.append({"instruction_set": native.instruction_set(), **record})
                print(*(f"{name} {value}" for name, value in record.items()), sep=", ", flush=True)
    if arguments.json is not None:
        machine = {"processor": processor(), "threads": arguments.threads, "reading": reading}
        arguments.json.write_text(json.dumps({**machine, "steps": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
