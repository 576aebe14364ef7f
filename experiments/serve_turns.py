"""A conversation of thirty turns with a server: does a turn take longer, the more has been said?

    python experiments/serve_turns.py runs/turns                  # writes turns.json

Two untrained models of one size answer by bytes: one of Mamba-2 layers alone, and one in which every other layer is
attention over all that was said. Both read only what is new, from the state that the server kept. In each turn the
client says ``--said`` characters and gets ``--answer`` tokens. ``busy`` is the processor's time of a turn, which other
work on the machine disturbs less than the seconds. The models take their turns one after the other, so that
other work on the machine disturbs both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import torch

import statewise as sw
from statewise.benchmark.processor import processor
from statewise.reproduce.files import write_json
from statewise.serve import ServeConfig
from statewise.serve.server import make_server, running_server

WIDTH = 256


def build(hybrid: bool) -> sw.LanguageModel:
    torch.manual_seed(0)
    mamba = sw.Mamba2Config(d_state=64, d_head=64)
    other = sw.AttentionConfig(n_heads=4) if hybrid else mamba
    config = sw.LanguageModelConfig(vocab_size=257, d_model=WIDTH, layers=(mamba, other) * 2, tie_embeddings=False)
    model = config.build().eval()
    with torch.no_grad():
        model.head.weight.normal_()
        model.head.weight[128:] = 0  # ASCII alone, and no end: the other logits are far from 0
    return model


class Talk:
    """A conversation that grows, and what each turn took."""

    def __init__(self, name: str, stack: ExitStack, n_answer: int) -> None:
        self.server = make_server(build(name == "hybrid"), sw.ByteTokenizer(), ServeConfig(port=0), name=name)
        address = stack.enter_context(running_server(self.server))
        self.client = stack.enter_context(httpx.Client(base_url=address, timeout=600))
        self.name, self.n_answer, self.text = name, n_answer, ""
        self.turns: list[dict[str, Any]] = []

    def turn(self, said: str) -> None:
        self.text += said
        asked = {"model": self.name, "prompt": self.text, "max_tokens": self.n_answer, "seed": len(self.turns)}
        begun, used = time.perf_counter(), time.process_time()
        answer = self.client.post("/v1/completions", json=asked).raise_for_status().json()
        seconds, busy = time.perf_counter() - begun, time.process_time() - used
        self.text += answer["choices"][0]["text"]
        usage = answer["usage"]
        kept = usage["prompt_tokens_details"]["cached_tokens"]
        read = usage["prompt_tokens"] - kept
        states = self.server.states
        latest = next(reversed(states._recent.values()))
        record = {
            "seconds": round(seconds, 4),
            "busy": round(busy, 4),
            "read": read,
            "kept": kept,
            "state_bytes": latest.n_bytes,
        }
        self.turns.append(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--said", type=int, default=300)
    parser.add_argument("--answer", type=int, default=100)
    arguments = parser.parse_args()
    said = ("What do you know of all that was said before, and what have you forgotten of it? " * 99)[: arguments.said]
    with ExitStack() as stack:
        talks = [Talk(name, stack, arguments.answer) for name in ("recurrent", "hybrid")]
        for turn in range(arguments.turns):
            for talk in talks:
                talk.turn(said)
            print(turn + 1, *(f"{talk.name} {talk.turns[-1]}" for talk in talks), flush=True)
    summary = {}
    for talk in talks:
        early, late = talk.turns[1:6], talk.turns[-5:]
        ratios = {}
        for key in ("seconds", "busy", "state_bytes"):
            first, last = (statistics.median(turn[key] for turn in part) for part in (early, late))
            ratios[key] = {"turns 2 to 6": first, "last five": last, "ratio": round(last / first, 3)}
        summary[talk.name] = ratios
    print(summary)
    record = {"processor": processor(), "threads": torch.get_num_threads(), "summary": summary}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "turns.json", record | {talk.name: talk.turns for talk in talks})


if __name__ == "__main__":
    main()
