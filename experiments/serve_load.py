"""Two hundred requests of sixteen clients, again and again: is every answer right, and does memory stay flat?

    python experiments/serve_load.py runs/load                       # writes load.json
    python experiments/serve_load.py runs/load --source runs/first   # with a model of yours

Prompts and answers are of mixed length. A fifth of the requests is malformed, a fifth is cut off after some events, and
the rest are compared with what ``statewise.generate`` writes. The server is a process of its own, ``statewise serve``
with states on disk, whose resident memory is read after each round.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch

import statewise as sw
from statewise.benchmark.processor import processor
from statewise.cli.model_folder import ModelFolder, open_model
from statewise.reproduce.files import write_json

BAD: list[dict[str, Any]] = [
    {"temperature": "hot"},
    {"prompt": None},
    {"model": "another"},
    {"max_tokens": 10**30},
    {"stop": [3]},
    {"unknown": 1},
    {"prompt": [10**9]},
]
WORDS = (
    "state",
    "model",
    "token",
    "matrix",
    "kernel",
    "time",
    "scan",
    "signal",
    "memory",
    "filter",
    "of",
    "the",
    "and",
)


def untrained(folder: Path) -> Path:
    """A small hybrid that writes bytes."""
    torch.manual_seed(0)
    layers = (sw.MambaConfig(), sw.Mamba2Config(d_state=32, d_head=32), sw.AttentionConfig(n_heads=4, window=64))
    config = sw.LanguageModelConfig(vocab_size=257, d_model=128, layers=layers, tie_embeddings=False)
    model = config.build().eval()
    with torch.no_grad():
        model.head.weight.normal_()
        model.head.weight[128:] *= 0.1
    sw.save(model, folder / "small", tokenizer=sw.ByteTokenizer())
    return folder / "small"


def cases(n: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {
            "prompt": " ".join(draw.choices(WORDS, k=draw.choice([1, 5, 20, 80]))),
            "max_tokens": draw.choice([4, 17, 40, 90]),
            "temperature": draw.choice([0, 0.7, 1.0]),
            "seed": i,
        }
        for i in range(n)
    ]


def written(opened: ModelFolder, case: dict[str, Any]) -> str:
    asked = {name: case[name] for name in ("temperature", "seed")}
    prompt = opened.prompts([case["prompt"]])
    stream = sw.generate(
        opened.language_model, prompt, max_new_tokens=case["max_tokens"], tokenizer=opened.tokenizer, **asked
    )
    return "".join("" if token.text is None else token.text[0] for token in stream)


def resident(process: subprocess.Popen[str]) -> int:
    """Bytes; 0 where the system has no /proc."""
    try:
        pages = Path(f"/proc/{process.pid}/statm").read_text("utf-8").split()[1]
    except OSError:
        return 0
    return int(pages) * 4096


def one_round(client: httpx.Client, asked: list[dict[str, Any]], want: list[str], n_clients: int) -> dict[str, int]:
    found = {"right": 0, "wrong": 0, "refused": 0, "cut off": 0}

    def ask(i: int) -> str:
        body = {"model": "load", **asked[i]}
        if i % 5 == 1:
            response = client.post("/v1/completions", json=body | BAD[i % len(BAD)])
            told = response.json()["error"]["message"]
            return "refused" if 400 <= response.status_code < 500 and told else "wrong"
        if i % 5 == 2:
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
                for _, _line in zip(range(1 + i % 7), response.iter_lines()):
                    pass
            return "cut off"
        response = client.post("/v1/completions", json=body)
        good = response.status_code == 200 and response.json()["choices"][0]["text"] == want[i]
        return "right" if good else "wrong"

    with ThreadPoolExecutor(n_clients) as pool:
        for kind in pool.map(ask, range(len(asked))):
            found[kind] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", type=Path, help="a model with a tokenizer; by default a small one, untrained")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statewise-load-") as folder:
        source = untrained(Path(folder)) if arguments.source is None else arguments.source
        opened = open_model(source, device="cpu")
        asked = cases(arguments.requests)
        want = [written(opened, case) if i % 5 not in (1, 2) else "" for i, case in enumerate(asked)]
        words = ["--port", "0", "--name", "load", "--max-waiting", "200", "--state-memory", "0.05"]
        words += ["--state-folder", str(Path(folder, "states")), "--state-disk", "0.05"]
        command = [sys.executable, "-m", "statewise", "serve", str(source), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[3].removesuffix("/v1")
            rounds = []
            with httpx.Client(base_url=address, timeout=300) as client:
                for _ in range(arguments.rounds):
                    begun = time.perf_counter()
                    found: dict[str, Any] = dict(one_round(client, asked, want, arguments.clients))
                    found |= {"seconds": round(time.perf_counter() - begun, 2), "resident_bytes": resident(process)}
                    rounds.append(found)
                    print(json.dumps(found), flush=True)
        finally:
            process.terminate()
            code = process.wait(timeout=60)
    about = {"processor": processor(), "exit_code": code, "rounds": rounds}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "load.json", about)
    sys.exit(0 if all(one["wrong"] == 0 for one in rounds) else 1)


if __name__ == "__main__":
    main()
