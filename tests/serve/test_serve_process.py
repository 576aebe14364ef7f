"""The command: what it prints, how it stops, and what is left when it is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import ROOT
from forked_programs import ForkedProgram, program
from served_models import TOKENIZER, build, complete, wait_until, written

import statewise as sw

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "small"
    sw.save(build(), folder, tokenizer=TOKENIZER)
    return folder


@contextlib.contextmanager
def command(folder: Path, *words: object, **variables: str) -> Iterator[tuple[ForkedProgram, httpx.Client]]:
    """`statewise serve` in a process of its own, which is gone afterwards."""
    line = ["-m", "statewise", "serve", str(folder), "--port", "0", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    with program(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline().decode()
            assert "Serving small at http://127.0.0.1:" in told
            with httpx.Client(base_url=told.split()[3].removesuffix("/v1"), timeout=60) as client:
                yield process, client
        finally:
            process.kill()


def test_sigterm_ends_what_runs_and_refuses_what_is_new(small: Path) -> None:
    asked = {"model": "small", "prompt": "Hello", "max_tokens": 1500, "temperature": 0.1, "seed": 1, "stream": True}
    with command(small, "--stop-seconds", 60) as (process, client):
        other = httpx.Client(base_url=client.base_url)
        assert other.get("/health").status_code == 200  # this connection is open
        with client.stream("POST", "/v1/completions", json=asked) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):  # the port is closed
                wait_until(lambda: httpx.get(f"{client.base_url}/health", timeout=5).status_code == 0)
            with contextlib.suppress(httpx.TransportError):  # an open connection is closed, or answers that it stops
                assert other.post("/v1/completions", json=asked).status_code == 503
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) > 1000
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert b"POST /v1/completions 200" in process.stderr.read()


def test_states_outlive_kill_9(small: Path, tmp_path: Path) -> None:
    words = ("--state-folder", tmp_path / "states")
    prompt = "What was said before it was killed. " * 5
    with command(small, *words) as (process, client):
        client.post("/v1/states", json={"id": "kept", "prompt": prompt}).raise_for_status()
        text = complete(client, prompt, 20, seed=1)["choices"][0]["text"]
        wait_until(lambda: list(tmp_path.glob("states/*/prefixes/*.safetensors")))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    assert list(tmp_path.glob("states/*/saved/kept.safetensors"))
    with command(small, *words) as (_, client):
        assert [state["id"] for state in client.get("/v1/states").json()["data"]] == ["kept"]
        answer = complete(client, prompt + text, 10, seed=2)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt)
        assert answer["choices"][0]["text"] == written(build(), prompt + text, 10, seed=2)


@pytest.mark.slow
def test_killed_while_it_writes_states(small: Path, tmp_path: Path) -> None:
    """Whatever is on the disk then is whole: each saved state that the client was told of is there."""
    words = ("--state-folder", tmp_path / "states")
    told: set[str] = set()
    for attempt in range(4):
        with command(small, *words) as (process, client):
            there = {state["id"] for state in client.get("/v1/states").json()["data"]}
            assert told <= there
            for name in sorted(there):
                assert complete(client, "", 1, state=name)["choices"]
            assert not list(tmp_path.rglob(".*.writing-*"))
            killer = threading.Timer(0.3 + 0.37 * attempt, process.kill)
            killer.start()
            with contextlib.suppress(httpx.TransportError):
                for i in range(1000):
                    asked = {"id": f"s{attempt}-{i}", "prompt": f"{i} " * 30}
                    assert client.post("/v1/states", json=asked).status_code in (201, 409)
                    told.add(asked["id"])
            killer.join()
    assert len(told) > 4


def test_a_key_from_the_environment(small: Path) -> None:
    with command(small, STATEWISE_API_KEY="secret") as (_, client):
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
