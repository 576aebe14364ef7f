"""Speculative decoding with a draft ten times smaller: the same tokens, how much faster, and the distribution.

    python experiments/speculation_models.py runs/large --size large --minutes 28
    python experiments/speculation_models.py runs/small --size small --minutes 8
    statewise train --preset tiny --out runs/tiny
    python experiments/speculation.py runs/large runs/small runs/tiny --out speculation.json

Prompts are pieces of the test split, whose files neither model has seen. Every prompt is continued with and without the
draft, in turns, on one thread; seconds are the processor's, which other work disturbs less than those of a clock. What
a step of several tokens costs beside one is measured alone, for the large model and for a published size.

The distribution: texts are sampled with a draft, and the model reads them again without one. If each token x was drawn
from the model's p, then u = P(X < x) + v p(x), with v uniform, is uniform on (0, 1), and independent of all others. A
chi-square test counts 100,000 of them in 100 bins. The same is done with a sampler that is wrong on purpose.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statewise as sw
from statewise.data.text import TextDataConfig, open_corpus
from statewise.decoding import Decoder
from statewise.generation.speculation import Drafted, Speculation
from statewise.models.presets import PRESETS as MODELS
from statewise.reproduce.files import write_json
from statewise.reproduce.hardware import environment

STEPS = (1, 2, 3, 5, 7)  # tokens
NAMES = ("large", "small", "tiny")
PARTS = ("steps", "speed", "sampled", "greedy-small", "greedy")


class Counted(Decoder):
    """Counts its steps."""

    n_steps = 0

    def call(self, *args: Any, **kwargs: Any) -> Tensor | None:
        self.n_steps += 1
        return super().call(*args, **kwargs)


def prompts(n: int, length: int, seed: int) -> list[list[int]]:
    """Bytes within a document."""
    tokens = open_corpus(TextDataConfig()).split("test").tokens
    found: list[list[int]] = []
    generator = torch.Generator().manual_seed(seed)
    while len(found) < n:
        begin = int(torch.randint(len(tokens) - length, (), generator=generator))
        piece = [int(token) for token in tokens[begin : begin + length]]
        if max(piece) < 256:
            found.append(piece)
    return found


def continued(model: sw.LanguageModel, prompt: list[int], n: int, **options: Any) -> tuple[list[int], float, float]:
    """The tokens, and the seconds of processor and clock for all but the first, before which the prompt is read."""
    ids: list[int] = []
    for token in sw.generate(model, prompt, max_new_tokens=n, temperature=0, **options):
        if not ids:
            cpu, wall = time.process_time(), time.perf_counter()
        ids.append(int(token.ids))
    return ids, time.process_time() - cpu, time.perf_counter() - wall


def greedy(
    models: Sequence[sw.LanguageModel], texts: list[list[int]], n: int, draft_tokens: int, save: Callable[[Any], None]
) -> None:
    """Each prompt without and with the draft; what is known so far is saved."""
    model, draft = models
    large, small = Counted(model), Decoder(draft)
    seconds, clock, differ, steps = [0.0, 0.0], [0.0, 0.0], 0, [0, 0]
    options: tuple[dict[str, Any], dict[str, Any]] = (
        {"weights": large},
        {"weights": large, "draft": draft, "draft_weights": small, "draft_tokens": draft_tokens},
    )
    for i, prompt in enumerate(texts):
        found: list[list[int]] = [[], []]
        for way in (0, 1) if i % 2 else (1, 0):
            before = large.n_steps
            found[way], cpu, wall = continued(model, prompt, n, **options[way])
            seconds[way] += cpu
            clock[way] += wall
            steps[way] += large.n_steps - before
        differ += found[0] != found[1]
        n_tokens = (i + 1) * (n - 1)
        known = {
            "prompts": i + 1,
            "new_tokens": n,
            "draft_tokens": draft_tokens,
            "prompts_that_differ": differ,
            "tokens_per_step": n_tokens / steps[1],
            "tokens_per_processor_second": [n_tokens / second for second in seconds],
            "tokens_per_second": [n_tokens / second for second in clock],
            "faster_by_processor": seconds[0] / seconds[1],
            "faster_by_clock": clock[0] / clock[1],
        }
        if i % 10 == 9 or i + 1 == len(texts):
            print(json.dumps(known), flush=True)
            save(known)


def steps(model: sw.LanguageModel, weights: str) -> dict[str, float]:
    """Milliseconds of a step of so many tokens of one row, in turns: the median of 30."""
    decoder, seconds = Decoder(model, weights), {n: list[float]() for n in STEPS}
    readers = {n: decoder.ahead(model.initial_state(1), most=n) for n in STEPS}
    for _ in range(31):
        for n, reader in readers.items():
            begin = time.perf_counter()
            reader.read(torch.full((1, n), 65))
            seconds[n].append(time.perf_counter() - begin)
            reader.keep([0])
    return {str(n): 1e3 * statistics.median(found[1:]) for n, found in seconds.items()}


class Wrong(Speculation):
    """Draws from p, and not from what p has more than q, where a drafted token is refused."""

    def _sampled(self, p: Tensor, drafted: Drafted) -> tuple[Tensor, Tensor]:
        tokens, n = super()._sampled(p, drafted)
        rows = torch.arange(len(p))
        again = torch.multinomial(p[rows, n], 1)[:, 0]
        return tokens.scatter(1, n[:, None], again[:, None]), n


def sampled(model: Any, draft: Any, n_draws: int, batch: int, kind: type[Speculation]) -> dict[str, Any]:
    """The chi-square test of so many sampled tokens."""
    from scipy.stats import chi2

    import statewise.generation.drafting as drafting

    before = drafting.Speculation
    drafting.Speculation = kind  # type: ignore[misc]
    generator = torch.Generator().manual_seed(0)
    counts, n_found, n, prompt_length = torch.zeros(100), 0, 101, 16
    decoders = Decoder(model), Decoder(draft)
    try:
        while n_found < n_draws:
            texts = torch.tensor(prompts(batch, prompt_length, seed=n_found + 1))
            options: dict[str, Any] = {"weights": decoders[0], "draft_weights": decoders[1], "draft": draft}
            stream = sw.generate(model, texts, max_new_tokens=n, seed=n_found, **options)
            written = torch.stack([token.ids for token in stream], 1)
            whole = torch.cat([texts, written], 1)
            with torch.no_grad():
                logits, _ = model(whole[:, :-1])
            p = (
                logits[:, prompt_length:].double().softmax(-1)
            )  # of all written tokens but the first, which no draft saw
            own = p.gather(2, written[:, 1:, None])[..., 0]
            below = p.cumsum(-1).gather(2, written[:, 1:, None])[..., 0] - own
            u = below + torch.rand(own.shape, generator=generator, dtype=torch.float64) * own
            u = u.flatten()[: n_draws - n_found]
            counts += torch.histc(u.float().clamp(0, 1 - 1e-7), 100, 0, 1)
            n_found += len(u)
    finally:
        drafting.Speculation = before  # type: ignore[misc]
    expected = n_found / 100
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return {"draws": n_found, "chi_square": statistic, "degrees": 99, "probability": float(chi2.sf(statistic, 99))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("large", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("tiny", type=Path, help="drafts for the small one, in the test of the distribution")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, required=True, help="what is there of other parts stays")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = (options.large, options.small, options.tiny)
    models: list[Any] = [sw.load(path).eval() for path in folders]
    large, small, tiny = models
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    record |= {
        "environment": environment(),
        "parameters": {
            name: sum(p.numel() for p in m.parameters()) for name, m in (("large", large), ("small", small))
        },
        "bits_per_byte": {},
    }
    for name, folder in zip(NAMES, folders):
        last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        scores = [line["bits_per_byte"] for line in last if line.get("kind") != "train" and "bits_per_byte" in line]
        record["bits_per_byte"][name] = scores[-1] if scores else math.nan

    def save(name: str, found: Any) -> None:
        record[name] = found
        write_json(options.out, record)

    for part in options.parts:
        if part == "steps":
            random = MODELS["hybrid-130m"]().build().eval()
            found = {"large, float32": steps(large, "float32")}
            for weights in ("float32", "bfloat16"):
                found[f"hybrid-130m, random, {weights}"] = steps(random, weights)
            save("steps, ms", found)
        elif part == "speed":
            for k in (2, 4, 6):
                greedy((large, small), prompts(16, 64, seed=k), 128, k, partial(save, f"speed, {k} drafted"))
        elif part == "sampled":
            save("sampled", sampled(small, tiny, options.draws, 50, Speculation))
            save("sampled wrongly", sampled(small, tiny, options.draws // 5, 50, Wrong))
        else:
            pair = (small, tiny) if part == "greedy-small" else (large, small)
            greedy(pair, prompts(options.prompts, 16, seed=0), 24, 4, partial(save, part))


if __name__ == "__main__":
    main()
