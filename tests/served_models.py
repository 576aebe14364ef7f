"""Servers in tests: small models that write text, and one of them on a free port for the time of a test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import torch

import statewise as sw
from statewise.serve import ServeConfig
from statewise.serve.app import Server
from statewise.serve.server import make_server, running_server

TOKENIZER = sw.ByteTokenizer()
MAMBA = sw.MambaConfig(d_state=4)
MAMBA2 = sw.Mamba2Config(d_state=8, d_head=8, chunk_length=16)
LAYERS: dict[str, tuple[Any, ...]] = {
    "mamba": (MAMBA, MAMBA),
    "mamba2": (MAMBA2, MAMBA2),
    "hybrid": (MAMBA, sw.AttentionConfig(n_heads=2), MAMBA2),
    "window": (MAMBA2, sw.AttentionConfig(n_heads=2, window=12)),
    "s4d": (sw.S4DConfig(d_state=8), sw.AttentionConfig(n_heads=2)),  # without a step in C
}


def build(layers: str = "mamba", seed: int = 0, **options: Any) -> sw.LanguageModel:
    """Logits well apart, so that rounding changes no token; text of ASCII mostly."""
    torch.manual_seed(seed)
    config = sw.LanguageModelConfig(vocab_size=257, d_model=24, layers=LAYERS[layers], tie_embeddings=False, **options)
    model = config.build().eval()
    with torch.no_grad():
        model.embedding.weight.normal_(0, 1)
        model.head.weight.normal_(0, 1)
        model.head.weight[128:256] *= 0.1  # few bytes that are no characters
        model.head.weight[256] *= 0.3  # few ends
    return model


def written(model: sw.LanguageModel, prompt: Any, n: int, **options: Any) -> str:
    """What :func:`statewise.generate` writes."""
    stream = sw.generate(model, prompt, max_new_tokens=n, tokenizer=TOKENIZER, **options)
    return "".join("" if token.text is None else token.text[0] for token in stream)


@contextlib.contextmanager
def serving(
    model: sw.LanguageModel,
    tokenizer: Any = TOKENIZER,
    *,
    weights: str | None = None,
    prompts: Any = None,
    **options: Any,
) -> Iterator[tuple[Server, httpx.Client]]:
    """The server, in a thread of this process, and a client of it."""
    config = ServeConfig(port=0, **options)
    server = make_server(model, tokenizer, config, name="small", weights=weights, prompts=prompts)
    headers = {} if config.api_key is None else {"authorization": f"Bearer {config.api_key}"}
    with running_server(server) as address, httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        yield server, client


def complete(client: httpx.Client, prompt: Any, longest: int, **options: Any) -> dict[str, Any]:
    """The answer of /v1/completions."""
    asked = {"model": "small", "prompt": prompt, "max_tokens": longest, **options}
    response = client.post("/v1/completions", json=asked)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def text_of(client: httpx.Client, prompt: Any, longest: int, **options: Any) -> str:
    return str(complete(client, prompt, longest, **options)["choices"][0]["text"])


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
