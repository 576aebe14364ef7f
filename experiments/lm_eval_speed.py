"""Multiple choice with long prompts: our model of lm-eval beside lm-eval's own "hf" over our transformers wrapper.

    python experiments/lm_eval_speed.py
    python experiments/lm_eval_speed.py --source runs/demo --prompt 4000 --questions 16

Both score the same requests of the same weights, and have to say the same. The questions are made from the text of
Python's standard library: what comes next, of four continuations? Needs the extras "eval" and "hf".
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import time
from collections.abc import Callable

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import statewise as sw
from statewise.integrations.lm_eval import StatewiseLM
from statewise.integrations.transformers import fast_tokenizer, from_statewise


def questions(n: int, prompt: int, choice: int) -> list[Instance]:
    """Four requests a question; lengths in characters."""
    text, draw = inspect.getsource(argparse), random.Random(0)
    requests = []
    for question in range(n):
        places = [draw.randrange(len(text) - prompt - choice) for _ in range(4)]
        context = text[places[0] : places[0] + prompt].rstrip()
        for i, place in enumerate(places):
            answer = text[place + prompt : place + prompt + choice]
            requests.append(Instance("loglikelihood", {}, (context, " " + answer), i, metadata=("speed", question, 1)))
    return requests


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="a run folder or a checkpoint; by default a Mamba with random weights")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=1000, help="characters of a prompt")
    parser.add_argument("--choice", type=int, default=24, help="characters of a choice")
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    if arguments.source is None:
        layers = (sw.MambaConfig(),) * arguments.layers
        model = sw.LanguageModelConfig(vocab_size=257, d_model=arguments.width, layers=layers).build().eval()
        native = StatewiseLM(model, tokenizer="bytes")
    else:
        native = StatewiseLM(arguments.source)
    wrapped, tokenizer = from_statewise(native.model), fast_tokenizer(native.tokenizer)
    # Its best batch size, and room for the whole prompt.
    options = {"max_length": 1 << 20, "add_bos_token": native.add_bos_token}
    others = {n: HFLM(wrapped, tokenizer=tokenizer, batch_size=n, **options) for n in (1, 4, 16)}

    requests = questions(arguments.questions, arguments.prompt, arguments.choice)

    def ours() -> list[tuple[float, bool]]:
        return native.loglikelihood(requests, disable_tqdm=True)

    def theirs(n: int) -> list[tuple[float, bool]]:
        return others[n].loglikelihood(requests, disable_tqdm=True)

    worst = max(abs(a - b) / abs(b) for (a, _), (b, _) in zip(ours(), theirs(1)))
    times: dict[object, float] = {"ours": float("inf"), **dict.fromkeys(others, float("inf"))}
    for _ in range(arguments.repeats):  # in turn, so that all see the same machine
        times["ours"] = min(times["ours"], seconds(ours))
        for n in others:
            times[n] = min(times[n], seconds(lambda n=n: theirs(n)))
    best = min(others, key=lambda n: times[n])
    record = {
        "questions": arguments.questions,
        "prompt_characters": arguments.prompt,
        "choice_characters": arguments.choice,
        "parameters": sum(parameter.numel() for parameter in native.model.parameters()),
        "threads": torch.get_num_threads(),
        "statewise_seconds": times["ours"],
        "hf_seconds": {str(n): times[n] for n in others},
        "hf_best_batch_size": best,
        "ratio": times[best] / times["ours"],
        "largest_relative_difference": worst,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
