"""The server's speed: seconds to the first token and tokens a second, with one client and with eight.

    python benchmarks/serve_speed.py                                  # mamba-130m with random weights, float32
    python benchmarks/serve_speed.py --weights int8 --clients 1,8,16
    python benchmarks/serve_speed.py --source runs/first              # a model of yours
    python benchmarks/serve_speed.py --llama                          # next to llama.cpp, on the same weights

Each client sends one request after the other, over HTTP, and reads the stream; tokens a second are those of all
clients together, from the first request to the last token. llama.cpp (``pip install "statewise[llama]"``) is called
through its C interface in this process, all sequences in one batch a step, each token the most likely one: it does not
pay for HTTP, for JSON or for text. Both take their turns, ``--rounds`` times, and the median counts, since other work
on the machine disturbs both.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch

import statewise as sw
from statewise.benchmark.processor import processor
from statewise.cli.model_folder import open_model
from statewise.models.presets import PRESETS
from statewise.serve import ServeConfig, running

TYPES = {"float32": "float32", "bfloat16": "bfloat16", "int8": "q8_0", "int4": "q4_0"}  # the nearest of llama.cpp's


def measure(address: str, n_clients: int, n_prompt: int, n_tokens: int, vocab_size: int) -> dict[str, float]:
    """One round: a request of each client at once, of random ids that nobody has sent before."""
    firsts: list[float] = []
    counts: list[int] = []
    lock = threading.Lock()

    def ask(i: int) -> None:
        ids = torch.randint(0, min(vocab_size, 256), (n_prompt,)).tolist()
        asked = {
            "model": "speed",
            "prompt": ids,
            "max_tokens": n_tokens,
            "temperature": 0,
            "stream": True,
            "logprobs": 0,
        }
        begun, n = time.perf_counter(), 0
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=600) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["logprobs"]:
                    n += 1
                    if n == 1:
                        with lock:
                            firsts.append(time.perf_counter() - begun)
        with lock:
            counts.append(n)

    begun = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as pool:
        list(pool.map(ask, range(n_clients)))
    seconds = time.perf_counter() - begun
    return {"first_token_seconds": statistics.mean(firsts), "tokens_per_second": sum(counts) / seconds}


class Llama:
    """llama.cpp's batches of several sequences, through its C interface."""

    def __init__(self, model: sw.LanguageModel, weights: str, n_threads: int, n_sequences: int, length: int) -> None:
        from statewise.benchmark.peers.llama_cpp import _api, written

        self.api = api = _api()
        path = written(model, TYPES[weights])
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length * n_sequences, 512, 512
        options.n_seq_max = n_sequences
        options.n_threads = options.n_threads_batch = n_threads
        self._context = api.llama_init_from_model(self._model, options)
        self._batch = api.llama_batch_init(512, 0, 1)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def close(self) -> None:
        self.api.llama_batch_free(self._batch)
        self.api.llama_free(self._context)
        self.api.llama_model_free(self._model)

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """tokens: (id, position, sequence, whether its logits are wanted)"""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if self.api.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def best(self, i: int) -> int:
        logits = self.api.llama_get_logits_ith(self._context, i)
        address = ctypes.cast(logits, ctypes.c_void_p).value
        assert address is not None
        array = (ctypes.c_float * self.vocab_size).from_address(address)
        return int(torch.frombuffer(array, dtype=torch.float32).argmax())

    def measure(self, n_clients: int, n_prompt: int, n_tokens: int) -> dict[str, float]:
        api = self.api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        begun, firsts, last = time.perf_counter(), [], []
        for sequence in range(n_clients):
            ids = torch.randint(0, min(self.vocab_size, 256), (n_prompt,)).tolist()
            for at in range(0, n_prompt, 512):
                piece = ids[at : at + 512]
                self.decode([(x, at + j, sequence, at + j == n_prompt - 1) for j, x in enumerate(piece)])
            last.append(self.best(len(piece) - 1))
            firsts.append(time.perf_counter() - begun)
        for step in range(n_tokens - 1):
            self.decode([(token, n_prompt + step, sequence, True) for sequence, token in enumerate(last)])
            last = [self.best(i) for i in range(n_clients)]
        seconds = time.perf_counter() - begun
        return {"first_token_seconds": statistics.mean(firsts), "tokens_per_second": n_clients * n_tokens / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="a run, a checkpoint or a published model; by default mamba-130m, untrained")
    parser.add_argument("--preset", default="mamba-130m", choices=sorted(PRESETS))
    parser.add_argument("--weights", default="float32", choices=TYPES)
    parser.add_argument("--clients", default="1,8", help="how many at once, with commas between")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="that each client asks for")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--llama", action="store_true", help="also measure llama.cpp")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.source is None:
        torch.manual_seed(0)
        model = PRESETS[arguments.preset](50_280).build().eval()
        with torch.no_grad():
            model.head.weight[256].zero_()  # the end token, which nobody is to write
        tokenizer: Any = sw.ByteTokenizer()
    else:
        opened = open_model(arguments.source, device="cpu")
        model, tokenizer = opened.language_model, opened.tokenizer
    found = []
    sizes = [int(n) for n in arguments.clients.split(",")]
    n_prompt, n_tokens, vocab_size = arguments.prompt, arguments.tokens, tokenizer.vocab_size
    config = ServeConfig(port=0, rows=max(sizes), state_bytes=0)
    with running(model, tokenizer, config, name="speed", weights=arguments.weights) as address:
        measure(address, 1, n_prompt, 16, vocab_size)
        for n in sizes:
            ours, theirs = [], []
            llama = None
            if arguments.llama:
                llama = Llama(model, arguments.weights, arguments.threads, n, n_prompt + n_tokens + 8)
                llama.measure(n, n_prompt, 4)
            for _ in range(arguments.rounds):
                ours.append(measure(address, n, n_prompt, n_tokens, vocab_size))
                if llama is not None:
                    theirs.append(llama.measure(n, n_prompt, n_tokens))
            if llama is not None:
                llama.close()
            record: dict[str, Any] = {"clients": n, "weights": arguments.weights}
            for name, rounds in (("statewise", ours), ("llama.cpp", theirs)):
                for key in rounds[0] if rounds else ():
                    record[f"{name} {key}"] = round(statistics.median(one[key] for one in rounds), 4)
            if theirs:
                rates = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(ours, theirs)]
                record["ratio of tokens_per_second"] = round(statistics.median(rates), 3)
            print(json.dumps(record), flush=True)
            found.append(record)
    if arguments.json is not None:
        about = {"processor": processor(), "threads": arguments.threads, "tokens": [n_prompt, n_tokens]}
        arguments.json.write_text(json.dumps({**about, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
