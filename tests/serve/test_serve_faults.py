"""Faults of ours and of models: a clear 500, and the next request is answered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from served_models import TOKENIZER, build, serving, text_of, written

from statewise.generation import read
from statewise.serve.drawing import drawn
from statewise.serve.errors import RequestError
from statewise.serve.job import Failed, Job, Writing
from statewise.serve.rows import DecoderRows

ASKED: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 9, "seed": 1}


def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    with serving(model) as (server, client):
        want = text_of(client, "x", 9, seed=1)
        step = DecoderRows.step

        def fail(self: DecoderRows, tokens: Any) -> Any:
            raise RuntimeError("no such luck")

        monkeypatch.setattr(DecoderRows, "step", fail)
        response = client.post("/v1/completions", json=ASKED)
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
        assert "no such luck" not in response.text
        lines = client.post("/v1/completions", json=ASKED | {"stream": True}).text.split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "server_error"
        monkeypatch.setattr(DecoderRows, "step", step)
        assert text_of(client, "x", 9, seed=1) == want == written(model, "x", 9, seed=1)
        assert server.engine.counts() == {"reading": 0, "writing": 0, "waiting": 0}


def test_a_row_of_nan_leaves_the_others_alone() -> None:
    reading = read(build(), [1, 2, 3])
    jobs = []
    for logits in (reading.logits, reading.logits * float("nan"), reading.logits):
        job = Job(ids=np.array([1, 2, 3]), sink=lambda event: None, seed=4, n_top=None)
        job.writing = Writing(job, reading._replace(logits=logits), TOKENIZER)
        jobs.append(job)
    tokens = [token for _, token, _ in drawn(jobs, None)]
    assert tokens[1] == -1
    assert tokens[0] == tokens[2] >= 0


def test_a_model_of_nan() -> None:
    model = build()
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))  # type: ignore[union-attr]
    with serving(model) as (_, client):
        response = client.post("/v1/completions", json=ASKED)
        assert response.status_code == 500
        assert "not finite" in response.json()["error"]["message"]


def test_an_engine_that_stops_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(build()) as (server, client):
        assert client.get("/health").status_code == 200

        def fail() -> None:
            raise MemoryError

        monkeypatch.setattr(server.engine, "_admit", fail)
        assert client.post("/v1/completions", json=ASKED).status_code == 500
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json=ASKED).status_code == 503


def test_whoever_hears_of_the_end_finds_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a job that came while the engine failed is answered, and none is taken afterwards."""
    events: list[Any] = []
    alive: list[bool] = []
    with serving(build()) as (server, client):
        engine = server.engine
        send = engine._send

        def fail() -> None:
            engine.submit([Job(ids=np.array([1, 2]), sink=events.append, seed=1, n_top=None)])
            raise MemoryError

        def send_and_look() -> None:
            send()
            alive.append(engine.is_alive)

        monkeypatch.setattr(engine, "_admit", fail)
        monkeypatch.setattr(engine, "_send", send_and_look)
        assert client.post("/v1/completions", json=ASKED).status_code == 500
        engine._thread.join(timeout=60)
        assert [type(event) for event in events] == [Failed]
        assert alive == [False]
        with pytest.raises(RequestError, match="stopping"):
            engine.submit([Job(ids=np.array([1]), sink=events.append, seed=1, n_top=None)])
        assert engine.counts() == {"reading": 0, "writing": 0, "waiting": 0}
