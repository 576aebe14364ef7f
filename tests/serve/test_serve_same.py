"""What the server writes is what `generate` writes, whoever else is there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from served_models import LAYERS, TOKENIZER, build, complete, serving, text_of, written

import statewise as sw
from statewise.generation.reading import extend
from statewise.serve.job import Job
from statewise.serve.model import ServedModel
from statewise.serve.prompts import begin_to_read, read_piece, read_together

TEXT = "The state of a model is what it knows of all that it has read, in a few numbers. " * 3
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7},
    {"seed": 3, "top_k": 5},
    {"seed": 4, "top_p": 0.8, "temperature": 1.3},
    {"seed": 5, "min_p": 0.1, "repetition_penalty": 1.3},
    {"temperature": 0, "repetition_penalty": 1.5},
]
CASES = [(TEXT[i : i + 7 * i + 3], 25 + 5 * (i % 4), OPTIONS[i % len(OPTIONS)]) for i in range(21)]


@pytest.mark.parametrize("layers", LAYERS)
def test_many_at_once_each_as_alone(layers: str) -> None:
    model = build(layers)
    want = [written(model, prompt, n, **options) for prompt, n, options in CASES]
    with serving(model, rows=4, prefill_piece=32) as (server, client), ThreadPoolExecutor(10) as pool:
        got = list(pool.map(lambda case: text_of(client, case[0], case[1], **case[2]), CASES))
        assert got == want
        got = list(pool.map(lambda case: text_of(client, case[0], case[1], **case[2]), CASES))  # from kept states
        assert got == want
        assert server.states.hits >= len(CASES)
        assert server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0}


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_with_other_weights(weights: str) -> None:
    model = build("hybrid")
    with serving(model, rows=3, weights=weights) as (_, client), ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda case: text_of(client, case[0], case[1], **case[2]), CASES[:9]))
    assert got == [written(model, prompt, n, weights=weights, **options) for prompt, n, options in CASES[:9]]


def test_several_prompts_and_choices_have_the_seeds_of_rows() -> None:
    model = build("mamba2")
    with serving(model, rows=4) as (_, client):
        choices = complete(client, ["One", "Two, three"], 20, seed=7)["choices"]
        assert [c["text"] for c in choices] == [
            written(model, p, 20, seed=7 + i) for i, p in enumerate(("One", "Two, three"))
        ]
        answer = complete(client, "One", 20, seed=7, n=3)
        assert [c["text"] for c in answer["choices"]] == [written(model, "One", 20, seed=7 + i) for i in range(3)]
        assert answer["usage"]["prompt_tokens"] == 4
        ids = complete(client, [256, 79, 110, 101], 20, seed=7)["choices"][0]
        assert ids["text"] == written(model, "One", 20, seed=7)


def test_the_best_of_several_as_generate_has_them() -> None:
    model = build("mamba2")
    prompts = ["One", "Two, three"]
    options: dict[str, Any] = {"max_new_tokens": 20, "seed": 7, "tokenizer": TOKENIZER, "n": 2, "best_of": 5}
    steps = list(sw.generate(model, prompts, **options))
    want = ["".join(parts) for parts in zip(*(step.text or [] for step in steps))]
    with serving(model, rows=4) as (_, client):
        answer = complete(client, prompts, 20, seed=7, n=2, best_of=5)
        assert [choice["text"] for choice in answer["choices"]] == want
        assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
        assert answer["usage"]["completion_tokens"] > 4 * 20
        assert answer["usage"]["prompt_tokens"] == 15
        again = complete(client, prompts, 20, seed=7, n=2, best_of=5, logprobs=1, echo=True)["choices"]
        assert [choice["text"] for choice in again] == [prompts[i // 2] + text for i, text in enumerate(want)]


def test_ids_with_documents_within() -> None:
    model = build("hybrid")
    prompt = [256, 65, 66, 256, 67, 68, 69]
    want = written(model, prompt, 15, temperature=0, document_token=256)
    with serving(model, prefill_piece=2) as (_, client):
        for _ in range(2):
            assert text_of(client, prompt, 15, temperature=0) == want


def test_stops_and_ends() -> None:
    model = build("mamba")
    whole = written(model, "Once", 60, seed=11)
    stop = whole[20:22]
    with serving(model) as (_, client):
        choice = complete(client, "Once", 60, seed=11, stop=stop)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
        assert complete(client, "Once", 60, seed=11)["choices"][0]["text"] == whole
        assert complete(client, "Once", 3, seed=11, echo=True)["choices"][0]["text"] == "Once" + whole[:3]


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    """While it is read, another sequence writes: one step for each piece."""
    model = build("mamba")
    long = TEXT * 40
    with serving(model, rows=2, prefill_piece=16) as (server, client), ThreadPoolExecutor(2) as pool:
        text_of(client, "warm", 2)
        n_pieces = len(long) // 16
        reading = pool.submit(text_of, client, long, 4, temperature=0)
        while not server.engine.counts()["reading"]:
            pass
        before = server.metrics.tokens_read.total()
        got = text_of(client, "Short", 30, seed=1)
        during = server.metrics.tokens_read.total() - before
        assert got == written(model, "Short", 30, seed=1)
        assert not reading.done()
        assert during < len(long) / 2, (during, n_pieces)
        assert reading.result() == written(model, long, 4, temperature=0)


@pytest.mark.parametrize("layers", LAYERS)
def test_short_prompts_are_read_together(layers: str) -> None:
    """Of ragged lengths, some of them from rest and some behind what is known, with documents that begin within."""
    served = ServedModel(build(layers), TOKENIZER)
    rows = [[256, 65, 66], [256, 70, 256, 71, 72, 73, 74], [80] * 5, [256]]
    known = [0, 2, 3, 0]

    def begun() -> list[Job]:
        jobs = [Job(ids=np.array(ids, np.int32), sink=lambda event: None) for ids in rows]
        for job, n in zip(jobs, known):
            begin_to_read(served, job, (0, None))
            if n:
                read_piece(served, job, n)
        return jobs

    with torch.inference_mode():
        apart, together = begun(), begun()
        for job in apart:
            read_piece(served, job, len(job.ids))
        read_together(served, together, [len(ids) for ids in rows])
    for one, other in zip(apart, together):
        assert other.n_read == len(other.ids)
        for got, want in zip(said(served.model, other), said(served.model, one), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def said(model: sw.LanguageModel, job: Job) -> list[torch.Tensor]:
    """What was read, and what follows."""
    assert job.reading is not None
    reading = job.reading
    with torch.inference_mode():
        after = extend(model, reading, torch.tensor([[65, 66]]), None, None)
    return [reading.logits, reading.seen.float(), reading.recent.float(), after.logits, reading.state.position.float()]
